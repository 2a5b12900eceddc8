//! Write coalescing: small writes of one scheduler pass of the async runtime leave in one system call.
//!
//! HTTP/2 sends a request in two frames and writes each one immediately: two system calls, two TLS records, two wake-ups of the
//! peer. The second frame is ready shortly after the first, once the task that produces it has been polled.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Writes of at least this many bytes are not delayed.
const COALESCED_MIN: usize = 16 * 1024;

/// A stream whose small writes are delayed until every ready task has been polled once.
#[derive(Debug)]
pub struct CoalescingStream<S> {
    stream: S,
    /// Whether the pending write has been delayed already.
    delayed: bool,
}

impl<S> CoalescingStream<S> {
    /// Wraps `stream`.
    pub fn new(stream: S) -> Self {
        Self { stream, delayed: false }
    }

    /// Whether a write of `bytes` is delayed; if so, the task is polled again after the others.
    fn must_delay(&mut self, bytes: usize, cx: &Context<'_>) -> bool {
        if self.delayed || bytes >= COALESCED_MIN {
            return false;
        }
        self.delayed = true;
        cx.waker().wake_by_ref();
        true
    }

    /// Records the result of a write: a partly written one is not delayed again.
    fn finish_write<T>(&mut self, written: Poll<T>) -> Poll<T> {
        self.delayed = written.is_pending();
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CoalescingStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CoalescingStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.must_delay(buf.len(), cx) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.finish_write(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.must_delay(bufs.iter().map(|buf| buf.len()).sum(), cx) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.finish_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn a_small_write_is_delayed_behind_ready_tasks_and_a_large_one_is_not() {
        let order = std::cell::RefCell::new(Vec::new());
        let (near, mut far) = duplex(2 * COALESCED_MIN);
        let mut near = CoalescingStream::new(near);
        for (bytes, expect) in [(5, ["other", "written"]), (COALESCED_MIN, ["written", "other"])] {
            let write = async {
                near.write_all(&vec![7; bytes]).await.expect("written");
                order.borrow_mut().push("written");
            };
            let other = async { order.borrow_mut().push("other") };
            tokio::join!(write, other);
            assert_eq!(order.take(), expect, "{bytes}");
            let mut read = vec![0; bytes];
            far.read_exact(&mut read).await.expect("read");
            assert_eq!(read, vec![7; bytes]);
        }
    }

    #[tokio::test]
    async fn a_write_larger_than_the_buffer_completes() {
        let (near, mut far) = duplex(4);
        let mut near = CoalescingStream::new(near);
        let read = tokio::spawn(async move {
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.map(|_| read)
        });
        near.write_all(b"more than four").await.expect("written");
        near.shutdown().await.expect("ended");
        assert_eq!(read.await.expect("joined").expect("read"), b"more than four");
    }
}
