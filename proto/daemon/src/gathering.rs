//! Writes that gather what a turn of the async runtime has to say.
//!
//! HTTP/2 sends a request in two frames, each written as soon as it is there: two system calls, two records of TLS, and the peer wakes
//! up twice. The second frame is there a moment later, when the task that makes it has had its turn.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// From so many bytes on a write goes at once: it has been gathered.
const ENOUGH: usize = 16 * 1024;

/// A stream whose small writes wait until every task that is ready has had a turn, and no longer.
#[derive(Debug)]
pub struct Gathering<S> {
    stream: S,
    /// Whether what is to be written has waited.
    waited: bool,
}

impl<S> Gathering<S> {
    /// Around `stream`.
    pub fn new(stream: S) -> Self {
        Self { stream, waited: false }
    }

    /// Whether a write of `bytes` has to wait; then the task comes back after the others.
    fn waits(&mut self, bytes: usize, cx: &Context<'_>) -> bool {
        if self.waited || bytes >= ENOUGH {
            return false;
        }
        self.waited = true;
        cx.waker().wake_by_ref();
        true
    }

    /// Takes in how a write went: one that is under way does not wait again.
    fn wrote<T>(&mut self, written: Poll<T>) -> Poll<T> {
        self.waited = written.is_pending();
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathering<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathering<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.waits(buf.len(), cx) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.wrote(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.waits(bufs.iter().map(|buf| buf.len()).sum(), cx) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.wrote(written)
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
    async fn a_small_write_lets_the_others_go_first_and_a_large_one_does_not() {
        let order = std::cell::RefCell::new(Vec::new());
        let (near, mut far) = duplex(2 * ENOUGH);
        let mut near = Gathering::new(near);
        for (bytes, expect) in [(5, ["other", "written"]), (ENOUGH, ["written", "other"])] {
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
    async fn what_does_not_go_at_once_goes_all_the_same() {
        let (near, mut far) = duplex(4);
        let mut near = Gathering::new(near);
        let read = tokio::spawn(async move {
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.map(|_| read)
        });
        near.write_all(b"more than four").await.expect("written");
        near.shutdown().await.expect("ended");
        assert_eq!(read.await.expect("joined").expect("read"), b"more than four");
    }
}
