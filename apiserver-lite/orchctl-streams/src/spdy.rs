//! Streams over one connection: the part of SPDY/3.1 that clients of container runtimes need (no pushes, no priorities, no flow control: these servers have
//! none). Each direction of a stream ends on its own. Every buffer is bounded: a reader that does not read stalls its connection, nothing else.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, FlushCompress};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::StreamError;

/// Longest payload of a frame that is sent, and of a piece that is received.
pub const PIECE_LEN_MAX: usize = 16 << 10;
/// Frames that wait to be written, and pieces that wait to be read, of each stream.
const QUEUE_LEN: usize = 16;
/// Most streams of a connection: sessions have at most five.
const STREAMS_MAX: u32 = 64;
/// Longest control frame that is received; more than servers send.
const CONTROL_LEN_MAX: u32 = 64 << 10;

const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const VERSION: u16 = 0x8003; // the bit of control frames, and version 3
const FIN: u8 = 1;
const HEAD_LEN: usize = 8;

type Receivers = Arc<Mutex<HashMap<u32, mpsc::Sender<Bytes>>>>;

/// One connection. Its tasks end when it is dropped.
pub struct Connection {
    frames: mpsc::Sender<Bytes>,
    receivers: Receivers,
    headers: Compress,
    last_id: u32,
    _tasks: JoinSet<()>,
}

/// What is sent on a stream.
#[derive(Debug)]
pub struct Outgoing {
    id: u32,
    frames: mpsc::Sender<Bytes>,
}

/// What arrives on a stream.
#[derive(Debug)]
pub struct Incoming(mpsc::Receiver<Bytes>);

impl Connection {
    /// Over an upgraded connection.
    pub fn new(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (read, write) = tokio::io::split(io);
        let (frames, queued) = mpsc::channel(QUEUE_LEN);
        let receivers = Receivers::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(write_frames(write, queued));
        let reader = Reader { receivers: receivers.clone(), frames: frames.clone() };
        tasks.spawn(reader.run(read));
        // Level 0: headers are few, and what is stored needs no dictionary.
        let headers = Compress::new(Compression::none(), true);
        Self { frames, receivers, headers, last_id: 0, _tasks: tasks }
    }

    /// Opens a stream with these headers. The server's answer is not waited for: a refused stream ends.
    ///
    /// # Errors
    /// When the connection has broken.
    pub async fn open(
        &mut self,
        headers: &[(&str, &str)],
    ) -> Result<(Outgoing, Incoming), StreamError> {
        // Streams of clients have odd numbers.
        let id = if self.last_id == 0 { 1 } else { self.last_id.saturating_add(2) };
        if id > STREAMS_MAX.saturating_mul(2) {
            return Err(StreamError::Protocol("too many streams on one connection"));
        }
        self.last_id = id;
        let (sender, receiver) = mpsc::channel(QUEUE_LEN);
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        let block = self.header_block(headers)?;
        let mut payload = BytesMut::new();
        payload.put_u32(id);
        payload.put_u32(0); // associated with no stream
        payload.put_u16(0); // highest priority, no credential
        payload.extend_from_slice(&block);
        let frame = control_frame(SYN_STREAM, &payload);
        self.frames.send(frame).await.map_err(|_| StreamError::Closed)?;
        Ok((Outgoing { id, frames: self.frames.clone() }, Incoming(receiver)))
    }

    /// Names and values with their lengths, in one zlib stream a connection.
    fn header_block(&mut self, headers: &[(&str, &str)]) -> Result<Vec<u8>, StreamError> {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let mut plain = BytesMut::new();
        plain.put_u32(count(headers.len()));
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.put_u32(count(text.len()));
            plain.extend_from_slice(text.as_bytes());
        }
        let mut packed = Vec::with_capacity(plain.len() + 64); // stored: a few bytes more than the text
        self.headers
            .compress_vec(&plain, &mut packed, FlushCompress::Sync)
            .map_err(|_| StreamError::Protocol("cannot compress the SPDY headers"))?;
        Ok(packed)
    }
}

impl Outgoing {
    /// Sends bytes; waits while the connection is busy.
    ///
    /// # Errors
    /// When the connection has broken.
    pub async fn send(&self, data: &[u8]) -> Result<(), StreamError> {
        for piece in data.chunks(PIECE_LEN_MAX) {
            self.frame(0, piece).await?;
        }
        Ok(())
    }

    /// Ends this direction: the other side reads to its end.
    ///
    /// # Errors
    /// When the connection has broken.
    pub async fn finish(self) -> Result<(), StreamError> {
        self.frame(FIN, &[]).await
    }

    async fn frame(&self, flags: u8, piece: &[u8]) -> Result<(), StreamError> {
        let len = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        let mut frame = BytesMut::with_capacity(HEAD_LEN + piece.len());
        frame.put_u32(self.id);
        frame.put_u32(u32::from(flags) << 24 | (len & 0x00ff_ffff));
        frame.extend_from_slice(piece);
        self.frames.send(frame.freeze()).await.map_err(|_| StreamError::Closed)
    }
}

impl Incoming {
    /// The next bytes; `None` at the end of the stream or of the connection.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.0.recv().await
    }

    /// All bytes up to the end, of which `len_max` are kept.
    pub async fn collect(&mut self, len_max: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await {
            let room = len_max.saturating_sub(all.len()).min(piece.len());
            all.extend_from_slice(piece.get(..room).unwrap_or_default());
        }
        all
    }
}

fn control_frame(kind: u16, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEAD_LEN + payload.len());
    frame.put_u16(VERSION);
    frame.put_u16(kind);
    // No flags; payloads of control frames are short.
    frame.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX) & 0x00ff_ffff);
    frame.extend_from_slice(payload);
    frame.freeze()
}

async fn write_frames(mut write: impl AsyncWrite + Unpin, mut queued: mpsc::Receiver<Bytes>) {
    while let Some(frame) = queued.recv().await {
        // The reader notices a broken connection, too, and ends all streams.
        if write.write_all(&frame).await.is_err() || write.flush().await.is_err() {
            return;
        }
    }
}

struct Reader {
    receivers: Receivers,
    frames: mpsc::Sender<Bytes>,
}

impl Reader {
    async fn run(self, mut read: impl AsyncRead + Unpin) {
        // Whatever ended the connection, its streams end.
        let _ = self.read_frames(&mut read).await;
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, mpsc::Sender<Bytes>>> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read_frames(&self, read: &mut (impl AsyncRead + Unpin)) -> Result<(), StreamError> {
        loop {
            let word = match read.read_u32().await {
                Ok(word) => word,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(StreamError::Broken(error)),
            };
            let second = read.read_u32().await.map_err(StreamError::Broken)?;
            let (flags, len) = ((second >> 24) as u8, second & 0x00ff_ffff);
            if word & 0x8000_0000 == 0 {
                self.data(read, word, flags, len).await?;
                continue;
            }
            if word >> 16 != u32::from(VERSION) || len > CONTROL_LEN_MAX {
                return Err(StreamError::Protocol("unexpected version or length of a frame"));
            }
            let mut payload = vec![0; len as usize];
            read.read_exact(&mut payload).await.map_err(StreamError::Broken)?;
            if !self.control((word & 0xffff) as u16, flags, &payload).await {
                return Ok(());
            }
        }
    }

    /// Passes a data frame on, in pieces.
    async fn data(
        &self,
        read: &mut (impl AsyncRead + Unpin),
        id: u32,
        flags: u8,
        len: u32,
    ) -> Result<(), StreamError> {
        let mut left = len as usize;
        while left > 0 {
            let mut piece = BytesMut::zeroed(left.min(PIECE_LEN_MAX));
            read.read_exact(&mut piece).await.map_err(StreamError::Broken)?;
            left = left.saturating_sub(piece.len());
            let receiver = self.lock().get(&id).cloned();
            if let Some(receiver) = receiver {
                // The bytes of a stream without a reader are dropped.
                let _ = receiver.send(piece.freeze()).await;
            }
        }
        if flags & FIN != 0 {
            self.lock().remove(&id);
        }
        Ok(())
    }

    /// Handles a control frame; false when the connection ends.
    async fn control(&self, kind: u16, flags: u8, payload: &[u8]) -> bool {
        let id = payload.get(..4).and_then(|id| id.try_into().ok()).map_or(0, u32::from_be_bytes);
        match kind {
            RST_STREAM => drop(self.lock().remove(&(id & 0x7fff_ffff))),
            // The server's own pings, which have even numbers, are answered.
            PING if id % 2 == 0 => {
                return self.frames.send(control_frame(PING, payload)).await.is_ok();
            }
            GOAWAY => return false,
            // Answers, headers and settings say nothing that is needed; one may end the stream.
            _ if flags & FIN != 0 => drop(self.lock().remove(&(id & 0x7fff_ffff))),
            _ => {}
        }
        true
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use flate2::{Decompress, FlushDecompress};
    use tokio::io::DuplexStream;

    use super::*;

    /// The other side of a connection.
    pub(crate) struct Server {
        pub(crate) io: DuplexStream,
        headers: Decompress,
    }

    /// A frame that a client sent.
    #[derive(Debug, PartialEq)]
    pub(crate) enum Frame {
        Opened(u32, Vec<(String, String)>),
        Data(u32, Vec<u8>),
        End(u32),
        Other(u16, Vec<u8>),
    }

    impl Server {
        pub(crate) fn pair() -> (Connection, Server) {
            let (near, far) = tokio::io::duplex(1 << 16);
            (Connection::new(near), Server { io: far, headers: Decompress::new(true) })
        }

        pub(crate) async fn next(&mut self) -> Frame {
            let word = self.io.read_u32().await.expect("a frame");
            let second = self.io.read_u32().await.expect("a frame");
            let mut payload = vec![0; (second & 0x00ff_ffff) as usize];
            self.io.read_exact(&mut payload).await.expect("a payload");
            if word & 0x8000_0000 == 0 {
                return if second >> 24 == 1 {
                    Frame::End(word)
                } else {
                    Frame::Data(word, payload)
                };
            }
            assert_eq!(word >> 16, 0x8003);
            match (word & 0xffff) as u16 {
                SYN_STREAM => {
                    let id = u32::from_be_bytes(payload[..4].try_into().expect("four bytes"));
                    Frame::Opened(id, self.unpack(&payload[10..]))
                }
                kind => Frame::Other(kind, payload),
            }
        }

        fn unpack(&mut self, packed: &[u8]) -> Vec<(String, String)> {
            let mut plain = Vec::with_capacity(4096);
            self.headers
                .decompress_vec(packed, &mut plain, FlushDecompress::Sync)
                .expect("zlib without a dictionary");
            let mut rest = plain.as_slice();
            let number = |rest: &mut &[u8]| {
                let (head, tail) = rest.split_at(4);
                *rest = tail;
                u32::from_be_bytes(head.try_into().expect("four bytes")) as usize
            };
            let count = number(&mut rest);
            let text = |rest: &mut &[u8]| {
                let len = number(rest);
                let (head, tail) = rest.split_at(len);
                *rest = tail;
                String::from_utf8(head.to_vec()).expect("text")
            };
            let pairs = (0..count).map(|_| (text(&mut rest), text(&mut rest))).collect();
            assert!(rest.is_empty());
            pairs
        }

        pub(crate) async fn send(&mut self, id: u32, flags: u8, data: &[u8]) {
            self.io.write_u32(id).await.expect("open");
            let len = u32::try_from(data.len()).expect("short");
            self.io.write_u32(u32::from(flags) << 24 | len).await.expect("open");
            self.io.write_all(data).await.expect("open");
        }

        pub(crate) async fn control(&mut self, kind: u16, payload: &[u8]) {
            self.io.write_all(&control_frame(kind, payload)).await.expect("open");
        }
    }

    fn headers(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    #[tokio::test]
    async fn streams_have_headers_and_two_directions() {
        let (mut connection, mut server) = Server::pair();
        let (first, mut answers) = connection.open(&[("streamtype", "stdin")]).await.expect("open");
        let (second, mut others) =
            connection.open(&[("streamtype", "stdout"), ("port", "80")]).await.expect("open");
        assert_eq!(server.next().await, Frame::Opened(1, headers(&[("streamtype", "stdin")])));
        let pairs = headers(&[("streamtype", "stdout"), ("port", "80")]);
        assert_eq!(server.next().await, Frame::Opened(3, pairs));
        first.send(&vec![7; PIECE_LEN_MAX + 1]).await.expect("sent");
        first.finish().await.expect("sent");
        assert_eq!(server.next().await, Frame::Data(1, vec![7; PIECE_LEN_MAX]));
        assert_eq!(server.next().await, Frame::Data(1, vec![7]));
        assert_eq!(server.next().await, Frame::End(1));
        // The other direction still works, and ends alone.
        server.send(1, 0, b"abc").await;
        server.send(1, FIN, b"d").await;
        assert_eq!(answers.collect(100).await, b"abcd");
        server.send(3, 0, b"x").await;
        assert_eq!(others.next().await.as_deref(), Some(&b"x"[..]));
        second.send(b"y").await.expect("open");
        assert_eq!(server.next().await, Frame::Data(3, b"y".to_vec()));
    }

    #[tokio::test]
    async fn pings_are_answered_and_resets_end_streams() {
        let (mut connection, mut server) = Server::pair();
        let (_out, mut stream) = connection.open(&[]).await.expect("open");
        assert_eq!(server.next().await, Frame::Opened(1, Vec::new()));
        server.control(PING, &[0, 0, 0, 2]).await;
        assert_eq!(server.next().await, Frame::Other(PING, vec![0, 0, 0, 2]));
        server.control(RST_STREAM, &[0, 0, 0, 1, 0, 0, 0, 5]).await;
        assert_eq!(stream.next().await, None);
    }

    #[tokio::test]
    async fn streams_end_with_the_connection_and_with_nonsense() {
        let (mut connection, mut server) = Server::pair();
        let (_out, mut stream) = connection.open(&[]).await.expect("open");
        server.io.write_all(b"HTTP/1.1").await.expect("open");
        drop(server);
        assert_eq!(stream.next().await, None);
        let (mut connection, mut server) = Server::pair();
        let (_out, mut stream) = connection.open(&[]).await.expect("open");
        // A control frame of another version, with the longest length.
        server.io.write_all(&[0x80, 2, 0, 2, 0, 0xff, 0xff, 0xff]).await.expect("open");
        assert_eq!(stream.next().await, None);
    }

    #[tokio::test]
    async fn streams_of_a_connection_are_bounded() {
        let (mut connection, _server) = Server::pair();
        let mut opened = 0;
        while connection.open(&[]).await.is_ok() {
            opened += 1;
        }
        assert_eq!(opened, STREAMS_MAX);
    }

    #[tokio::test]
    async fn collected_stream_data_is_bounded() {
        let (mut connection, mut server) = Server::pair();
        let (_out, mut stream) = connection.open(&[]).await.expect("open");
        server.send(1, FIN, &[1; 100]).await;
        assert_eq!(stream.collect(10).await.len(), 10);
    }
}
