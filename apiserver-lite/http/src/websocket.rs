//! Watches and logs over WebSocket, for clients such as browsers: one message per watch event or log chunk, with the content of
//! the plain HTTP response. Upgrades that are proxied to a node are handled in `node_proxy`.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use apiserver_core::request::{RequestInfo, Verb};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt as _, StreamExt as _};
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use proto_daemon::panics;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::body::{self, BoxError, ResponseBody};
use super::upgrade;
use crate::overload::HeldStream;

/// Largest message from the client; messages are read only to answer pings and to notice the close.
const INCOMING_LEN_MAX: usize = 64 << 10;
/// Largest message to a client, and most bytes that are buffered for one: an object of 3 MiB may be six times as long as JSON.
const OUTGOING_LEN_MAX: usize = 64 << 20;

/// Content of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// One line of JSON.
    Lines,
    /// The bytes of one body frame.
    Binary,
    /// The bytes of one body frame in base64.
    Base64,
}

/// A WebSocket upgrade, removed from the request by [`take_upgrade`].
pub struct WebSocketUpgrade {
    socket: OnUpgrade,
    held: Option<HeldStream>,
    accept_key: String,
    framing: Framing,
    protocol: Option<&'static str>,
}

/// Whether the request is a watch or log with a WebSocket upgrade.
#[must_use]
pub fn is_stream_upgrade(headers: &HeaderMap, resource: &RequestInfo) -> bool {
    let streams = resource.verb == Verb::Watch || resource.subresource == "log";
    let websocket = headers
        .get(UPGRADE)
        .is_some_and(|name| name.to_str().is_ok_and(|name| name.eq_ignore_ascii_case("websocket")));
    streams
        && websocket
        && upgrade::is_requested(headers)
        && headers.contains_key(SEC_WEBSOCKET_KEY)
}

/// Removes the upgrade headers from `request`, so that it is served as plain HTTP, and returns the upgrade.
pub fn take_upgrade<B>(request: &mut Request<B>, resource: &RequestInfo) -> WebSocketUpgrade {
    let socket = hyper::upgrade::on(&mut *request);
    let held = request.extensions().get().cloned();
    let headers = request.headers_mut();
    let key = headers.remove(SEC_WEBSOCKET_KEY);
    let accept_key = derive_accept_key(key.as_ref().map(HeaderValue::as_bytes).unwrap_or_default());
    let protocol = choose_protocol(headers);
    let framing = match (resource.verb, protocol) {
        (_, Some("base64.binary.k8s.io")) => Framing::Base64,
        (Verb::Watch, None) => Framing::Lines,
        _ => Framing::Binary,
    };
    headers.remove(UPGRADE);
    headers.remove(CONNECTION);
    WebSocketUpgrade { socket, held, accept_key, framing, protocol }
}

/// The first offered subprotocol that is supported.
fn choose_protocol(headers: &HeaderMap) -> Option<&'static str> {
    const KNOWN: [&str; 2] = ["binary.k8s.io", "base64.binary.k8s.io"];
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let mut names = offered.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','));
    names.find_map(|name| KNOWN.into_iter().find(|known| *known == name.trim()))
}

impl WebSocketUpgrade {
    /// Switches protocols and streams the body of `response` if its status is 200; returns any other response unchanged.
    #[must_use]
    pub fn accept(self, response: Response<ResponseBody>) -> Response<ResponseBody> {
        if response.status() != StatusCode::OK {
            return response;
        }
        let mut answer = Response::new(body::full(""));
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        if let Ok(accept) = HeaderValue::from_str(&self.accept_key) {
            headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
        }
        if let Some(protocol) = self.protocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        }
        let (socket, framing, held) = (self.socket, self.framing, self.held);
        panics::spawn(async move {
            let _held = held;
            let ended = match socket.await {
                Ok(socket) => stream(socket, response.into_body(), framing).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = ended {
                tracing::debug!(error, "a WebSocket stream ended with an error");
            }
        });
        answer
    }
}

async fn stream(socket: Upgraded, body: ResponseBody, framing: Framing) -> Result<(), BoxError> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(INCOMING_LEN_MAX))
        .max_frame_size(Some(INCOMING_LEN_MAX))
        .max_write_buffer_size(OUTGOING_LEN_MAX);
    let io = TokioIo::new(socket);
    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let (mut sender, mut receiver) = socket.split();
    let sending = async {
        let mut messages = Messages::new(body, framing);
        while let Some(message) = messages.next().await? {
            sender.send(message).await?;
        }
        sender.close().await?;
        Ok::<_, BoxError>(())
    };
    // Reading answers pings. The client's close ends the stream.
    let listening = async { while let Some(Ok(_)) = receiver.next().await {} };
    tokio::select! {
        sent = sending => sent,
        () = listening => Ok(()),
    }
}

/// Splits a body into messages.
struct Messages {
    body: ResponseBody,
    framing: Framing,
    /// What follows the last complete line.
    rest: BytesMut,
    /// The frames of the message that is being sent and of `rest`, which count as unread by the user as long as they exist.
    frames: Vec<Bytes>,
}

impl Messages {
    fn new(body: ResponseBody, framing: Framing) -> Self {
        Self { body, framing, rest: BytesMut::new(), frames: Vec::new() }
    }

    /// The next message; the one before it has been sent.
    async fn next(&mut self) -> Result<Option<Message>, BoxError> {
        loop {
            if let Some(line) = self.line() {
                return Ok(Some(text(line)));
            }
            if self.rest.is_empty() {
                self.frames.clear();
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let Ok(data) = frame?.into_data() else { continue };
            self.frames.push(data.clone());
            match self.framing {
                Framing::Lines => self.rest.extend_from_slice(&data),
                Framing::Binary => return Ok(Some(Message::Binary(data))),
                Framing::Base64 => return Ok(Some(Message::Text(STANDARD.encode(&data).into()))),
            }
        }
    }

    fn line(&mut self) -> Option<Bytes> {
        let end = self.rest.iter().position(|byte| *byte == b'\n')?;
        Some(self.rest.split_to(end.saturating_add(1)).freeze())
    }
}

/// A text message for a line of JSON; a binary one if it is not UTF-8.
fn text(line: Bytes) -> Message {
    match Utf8Bytes::try_from(line.clone()) {
        Ok(text) => Message::Text(text),
        Err(_) => Message::Binary(line),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;
    use crate::unsent_bytes::UnsentBytes;

    #[tokio::test]
    async fn events_are_messages_and_logs_are_pieces() {
        let parts = vec![Bytes::from("{1}\n{2"), Bytes::from("}\n")];
        let messages = async |framing| {
            let body = body::parts(parts.clone());
            let mut messages = Messages::new(body, framing);
            let mut all = Vec::new();
            while let Some(message) = messages.next().await.unwrap() {
                all.push(message);
            }
            all
        };
        let lines = messages(Framing::Lines).await;
        assert_eq!(lines, [Message::Text("{1}\n".into()), Message::Text("{2}\n".into())]);
        let pieces = messages(Framing::Binary).await;
        let bytes: Vec<u8> = pieces.into_iter().flat_map(Message::into_data).collect();
        assert_eq!(bytes, b"{1}\n{2}\n");
        assert_eq!(messages(Framing::Base64).await, [Message::Text("ezF9CnsyfQo=".into())]);
    }

    #[tokio::test]
    async fn the_frames_of_a_message_exist_until_the_next_one_is_wanted() {
        let unsent = UnsentBytes::default();
        let share = unsent.share("a");
        for framing in [Framing::Lines, Framing::Binary, Framing::Base64] {
            let parts = vec![Bytes::from("{1}\n{2"), Bytes::from("}\n")];
            let frames = share.reserve(usize::MAX).await.attach_to(parts);
            let frames = frames.into_iter().map(|bytes| Ok::<_, BoxError>(Frame::data(bytes)));
            let body = StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
            let mut messages = Messages::new(body, framing);
            for _ in 0..2 {
                assert!(messages.next().await.unwrap().is_some());
                assert!(share.try_reserve(1 << 20).is_none(), "{framing:?}");
            }
            assert_eq!(messages.next().await.unwrap(), None);
            assert!(share.try_reserve(1 << 20).is_some(), "{framing:?}");
        }
    }

    #[test]
    fn the_first_known_protocol_is_taken() {
        let mut headers = HeaderMap::new();
        assert_eq!(choose_protocol(&headers), None);
        let offer = HeaderValue::from_static("other, base64.binary.k8s.io,binary.k8s.io");
        headers.insert(SEC_WEBSOCKET_PROTOCOL, offer);
        assert_eq!(choose_protocol(&headers), Some("base64.binary.k8s.io"));
    }
}
