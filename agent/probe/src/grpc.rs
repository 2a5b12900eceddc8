//! The gRPC health checking protocol, `grpc.health.v1.Health/Check`. Specification:
//! <https://github.com/grpc/grpc/blob/master/doc/health-checking.md>.

use agent_pod::probe::ProbeOutcome;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout};

use crate::connection_tasks::ConnectionTasks;
use crate::prober::{ANSWER_BYTES, Prober};
use crate::tcp;

/// `ServingStatus.SERVING`.
const SERVING: u64 = 1;
/// gRPC status code `UNIMPLEMENTED`.
const UNIMPLEMENTED: &str = "12";

pub(crate) async fn probe(port: u16, service: &str, asker: Prober<'_>) -> ProbeOutcome {
    let address = tcp::authority(asker.ip, port);
    let within = format!("{:?}", asker.timeout);
    let began = Instant::now();
    let stream = match timeout(asker.timeout, tcp::connect(asker.ip, port, asker)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            return ProbeOutcome::Failure(format!(
                "error: failed to connect service at {address:?}: {error}"
            ));
        }
        Err(_) => {
            return ProbeOutcome::Failure(format!(
                "timeout: failed to connect service {address:?} within {within}"
            ));
        }
    };
    let call = check(TokioIo::new(stream), &address, service, asker.user_agent);
    // Connection and call share the timeout.
    match timeout(asker.timeout.saturating_sub(began.elapsed()), call).await {
        Ok(Ok(status)) => serving(status),
        Ok(Err(error)) => ProbeOutcome::Failure(error.to_string()),
        Err(_) => {
            ProbeOutcome::Failure(format!("timeout: health rpc did not complete within {within}"))
        }
    }
}

/// Why a call has no serving status. The texts are those of Kubernetes' probe.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error("error: health rpc probe failed: {0}")]
    Exchange(hyper::Error),
    #[error("error: health rpc probe failed: {0}")]
    Request(http::Error),
    #[error("error: health rpc probe failed: http status {0}")]
    HttpStatus(StatusCode),
    #[error("this server does not implement the grpc health protocol (grpc.health.v1.Health): {0}")]
    Unimplemented(String),
    #[error("error: health rpc probe failed: code = {code} desc = {message}")]
    Status { code: String, message: String },
}

fn serving(status: u64) -> ProbeOutcome {
    let name = match status {
        SERVING => return ProbeOutcome::Success,
        0 => "UNKNOWN",
        2 => "NOT_SERVING",
        3 => "SERVICE_UNKNOWN",
        _ => "a status that is none",
    };
    ProbeOutcome::Failure(format!("service unhealthy (responded with {name:?})"))
}

async fn check(
    io: TokioIo<tokio::net::TcpStream>,
    address: &str,
    service: &str,
    user_agent: &str,
) -> Result<u64, CallError> {
    // Everything of the connection ends with the call: this future polls the dispatcher, and the guard aborts what hyper spawns.
    let tasks = ConnectionTasks::default();
    let _guard = tasks.abort_on_drop();
    let shaken = http2::handshake(tasks.clone(), io).await;
    let (mut sender, connection) = shaken.map_err(CallError::Exchange)?;
    let request = Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header(header::USER_AGENT, user_agent)
        .body(Full::new(message(service)))
        .map_err(CallError::Request)?;
    let answer = async {
        let response = sender.send_request(request).await;
        read(response.map_err(CallError::Exchange)?).await
    };
    tokio::pin!(connection, answer);
    tokio::select! {
        answer = &mut answer => answer,
        _ = &mut connection => answer.await,
    }
}

/// `HealthCheckRequest { service }` as a gRPC message: uncompressed, length, payload.
fn message(service: &str) -> Bytes {
    let mut message = BytesMut::new();
    if !service.is_empty() {
        message.put_u8(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.put_u8(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
            length >>= 7;
        }
        message.put_u8(u8::try_from(length).unwrap_or(0));
        message.put_slice(service.as_bytes());
    }
    let mut frame = BytesMut::with_capacity(message.len().saturating_add(5));
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(&message);
    frame.freeze()
}

/// The serving status in a response.
async fn read(response: Response<Incoming>) -> Result<u64, CallError> {
    let (parts, mut body) = response.into_parts();
    if !parts.status.is_success() {
        return Err(CallError::HttpStatus(parts.status));
    }
    // A response without a message has its status in the headers.
    call_status(&parts.headers)?;
    let mut bytes = Vec::new();
    while bytes.len() < ANSWER_BYTES {
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(CallError::Exchange)?;
        match frame.into_data() {
            Ok(data) => bytes.extend_from_slice(&data),
            Err(frame) => {
                if let Some(trailers) = frame.trailers_ref() {
                    call_status(trailers)?;
                }
            }
        }
    }
    Ok(status(bytes.get(5..).unwrap_or_default()))
}

fn call_status(headers: &HeaderMap) -> Result<(), CallError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let message = text("grpc-message").unwrap_or_default();
    match text("grpc-status") {
        None | Some("0") => Ok(()),
        Some(UNIMPLEMENTED) => Err(CallError::Unimplemented(message.to_owned())),
        Some(code) => Err(CallError::Status { code: code.to_owned(), message: message.to_owned() }),
    }
}

/// Field 1 of `HealthCheckResponse`; 0 if missing.
fn status(message: &[u8]) -> u64 {
    match message {
        [0x08, value, ..] if *value < 0x80 => u64::from(*value),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_a_frame_with_one_string() {
        assert_eq!(message("").as_ref(), [0, 0, 0, 0, 0]);
        assert_eq!(message("ab").as_ref(), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let long = message(&"x".repeat(200));
        assert_eq!(&long[..8], [0, 0, 0, 0, 203, 0x0a, 0xc8, 0x01]);
    }

    #[test]
    fn the_answer_is_one_number() {
        assert_eq!(status(&[0x08, 1]), SERVING);
        assert_eq!(status(&[0x08, 2]), 2);
        assert_eq!(status(&[]), 0);
        assert_eq!(serving(SERVING), ProbeOutcome::Success);
    }
}
