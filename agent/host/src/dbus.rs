//! A connection to a message bus: calls, replies and signals. Implements the part of D-Bus that calls to system services need.

pub mod message;

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg,
    sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

use message::{Argument, LEN_MAX, Message, MessageKind, PREFIX_LEN};

/// Deadline of a reply.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Signals kept while waiting for a reply; older ones are dropped.
const SIGNALS_MAX: usize = 64;
/// File descriptors accepted per read.
const DESCRIPTORS_MAX: usize = 4;

/// Why a bus operation failed.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The connection broke or could not be opened.
    #[error("connection to the D-Bus system bus failed")]
    Broken(#[source] std::io::Error),
    /// A message violates the protocol.
    #[error("invalid D-Bus message: {0}")]
    Malformed(&'static str),
    /// The bus rejected the authentication.
    #[error("the D-Bus system bus rejected the authentication: {0}")]
    Refused(String),
    /// A call failed.
    #[error("{call}: {error}")]
    Failed {
        /// Method.
        call: String,
        /// Error name and message.
        error: String,
    },
    /// No reply in time.
    #[error("no reply to {0}")]
    Deadline(String),
}

impl BusError {
    /// Whether the reply was the error of this name.
    pub fn is(&self, name: &str) -> bool {
        matches!(self, Self::Failed { error, .. } if error.split(':').next() == Some(name))
    }

    /// Whether the connection may still be used.
    pub fn leaves_usable(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }
}

impl PartialEq for BusError {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

/// A message with its file descriptors.
#[derive(Debug)]
pub struct ReceivedMessage {
    pub message: Message,
    /// File descriptors received with it.
    pub descriptors: Vec<OwnedFd>,
}

/// A connection to the D-Bus system bus.
#[derive(Debug)]
pub struct Bus {
    stream: UnixStream,
    read: Vec<u8>,
    /// Bytes to come of a message that is too long to be decoded. Any process may send one.
    skipped: usize,
    descriptors: VecDeque<OwnedFd>,
    signals: VecDeque<Message>,
    serial: u32,
}

/// Whether a message is a broadcast signal. The bus delivers broadcasts by the match rules of this connection, which name the sender; a signal with a
/// destination is delivered without any rule, whichever process sent it.
fn is_broadcast(signal: &Message) -> bool {
    signal.kind == MessageKind::Signal && signal.destination.is_empty()
}

impl Bus {
    /// Connects to the bus at a socket and registers.
    ///
    /// # Errors
    /// The bus is not available or rejects the client.
    pub async fn connect(socket: &Path) -> Result<Self, BusError> {
        let stream = UnixStream::connect(socket).await.map_err(BusError::Broken)?;
        let mut bus = Self {
            stream,
            read: Vec::new(),
            skipped: 0,
            descriptors: VecDeque::new(),
            signals: VecDeque::new(),
            serial: 0,
        };
        let greet = async {
            bus.authenticate().await?;
            let own = "org.freedesktop.DBus";
            bus.exchange(Message::call(own, "/org/freedesktop/DBus", (own, "Hello"), &[])).await
        };
        let answered = tokio::time::timeout(ANSWER_WITHIN, greet).await;
        answered.map_err(|_| BusError::Deadline("Hello".to_owned()))??;
        Ok(bus)
    }

    /// Authenticates by the socket's credentials and negotiates file descriptor passing.
    async fn authenticate(&mut self) -> Result<(), BusError> {
        let uid = rustix::process::geteuid().as_raw().to_string();
        let hex: String = data_encoding::HEXLOWER.encode(uid.as_bytes());
        self.send(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes()).await?;
        self.expect_line("OK").await?;
        self.send(b"NEGOTIATE_UNIX_FD\r\n").await?;
        self.expect_line("AGREE_UNIX_FD").await?;
        self.send(b"BEGIN\r\n").await
    }

    async fn expect_line(&mut self, word: &str) -> Result<(), BusError> {
        loop {
            if let Some(end) = self.read.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.read.drain(..end + 2).collect();
                let line = String::from_utf8_lossy(&line).trim().to_owned();
                let fits = line.split(' ').next() == Some(word);
                return if fits { Ok(()) } else { Err(BusError::Refused(line)) };
            }
            if self.read.len() > 4096 {
                return Err(BusError::Malformed("a line without end"));
            }
            self.receive_bytes().await?;
        }
    }

    /// Calls a method and waits for the reply; signals received meanwhile are kept.
    ///
    /// # Errors
    /// The call or the connection failed. After a deadline the connection must not be used any more.
    pub async fn call(
        &mut self,
        destination: &str,
        path: &str,
        method: (&str, &str),
        args: &[Argument<'_>],
    ) -> Result<ReceivedMessage, BusError> {
        let call = Message::call(destination, path, method, args);
        let answered = tokio::time::timeout(ANSWER_WITHIN, self.exchange(call)).await;
        answered.map_err(|_| BusError::Deadline(method.1.to_owned()))?
    }

    async fn exchange(&mut self, call: Message) -> Result<ReceivedMessage, BusError> {
        self.serial = self.serial.wrapping_add(1).max(1);
        let call = Message { serial: self.serial, ..call };
        self.send(&call.encode()).await?;
        loop {
            let received = self.receive().await?;
            let message = &received.message;
            match message.kind {
                MessageKind::Signal if is_broadcast(message) => self.keep(received.message),
                MessageKind::Return if message.reply_to == call.serial => return Ok(received),
                MessageKind::Error if message.reply_to == call.serial => {
                    let text = message.text().unwrap_or_default();
                    let error = format!("{}: {text}", message.error);
                    return Err(BusError::Failed { call: call.member, error });
                }
                _ => {}
            }
        }
    }

    fn keep(&mut self, signal: Message) {
        if self.signals.len() >= SIGNALS_MAX {
            self.signals.pop_front();
        }
        self.signals.push_back(signal);
    }

    /// Waits for the next broadcast signal. Cancel safe.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn signal(&mut self) -> Result<Message, BusError> {
        loop {
            if let Some(signal) = self.signals.pop_front() {
                return Ok(signal);
            }
            let received = self.receive().await?;
            if is_broadcast(&received.message) {
                return Ok(received.message);
            }
        }
    }

    /// Sends a message as is, as a service does.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn send_message(
        &mut self,
        message: &Message,
        descriptor: Option<&OwnedFd>,
    ) -> Result<(), BusError> {
        self.serial = self.serial.wrapping_add(1).max(1);
        let bytes = Message { serial: self.serial, ..message.clone() }.encode();
        match descriptor {
            None => self.send(&bytes).await,
            Some(descriptor) => self.send_with(&bytes, descriptor).await,
        }
    }

    /// Receives the next message of any kind. Cancel safe: a partly read message is kept.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn receive(&mut self) -> Result<ReceivedMessage, BusError> {
        loop {
            let skipped = self.skipped.min(self.read.len());
            self.read.drain(..skipped);
            self.skipped = self.skipped.saturating_sub(skipped);
            if self.skipped == 0 && self.read.len() >= PREFIX_LEN {
                let len = Message::len_of(&self.read)?;
                if len > LEN_MAX {
                    self.skipped = len;
                    self.descriptors.clear();
                    continue;
                }
                if self.read.len() >= len {
                    let bytes: Vec<u8> = self.read.drain(..len).collect();
                    let message = Message::decode(&bytes)?;
                    let count = message.descriptors as usize;
                    let own = self.descriptors.drain(..count.min(self.descriptors.len()));
                    return Ok(ReceivedMessage { message, descriptors: own.collect() });
                }
            }
            self.receive_bytes().await?;
        }
    }

    async fn send(&self, mut bytes: &[u8]) -> Result<(), BusError> {
        while !bytes.is_empty() {
            self.stream.writable().await.map_err(BusError::Broken)?;
            match self.stream.try_write(bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(BusError::Broken(error)),
            }
        }
        Ok(())
    }

    async fn send_with(&self, bytes: &[u8], descriptor: &OwnedFd) -> Result<(), BusError> {
        let sent = self.stream.async_io(Interest::WRITABLE, || {
            let descriptors = [descriptor.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&descriptors));
            let bytes = [IoSlice::new(bytes)];
            Ok(sendmsg(self.stream.as_fd(), &bytes, &mut ancillary, SendFlags::NOSIGNAL)?)
        });
        let sent = sent.await.map_err(BusError::Broken)?;
        // The file descriptor was sent with the first byte.
        self.send(bytes.get(sent..).unwrap_or_default()).await
    }

    /// Reads available bytes with their file descriptors. Cancel safe.
    async fn receive_bytes(&mut self) -> Result<(), BusError> {
        let mut chunk = [0_u8; 4096];
        let mut passed = Vec::new();
        let read = self.stream.async_io(Interest::READABLE, || {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut chunk = [IoSliceMut::new(&mut chunk)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let read = recvmsg(self.stream.as_fd(), &mut chunk, &mut ancillary, flags)?;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    passed.extend(descriptors);
                }
            }
            Ok(read.bytes)
        });
        let read = read.await.map_err(BusError::Broken)?;
        if read == 0 {
            return Err(BusError::Broken(std::io::ErrorKind::UnexpectedEof.into()));
        }
        self.read.extend(chunk.get(..read).unwrap_or_default());
        self.descriptors.extend(passed);
        Ok(())
    }
}
