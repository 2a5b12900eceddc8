//! Lines of a response that arrives in parts: events of watches.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt;
use proto_client::ResponseBody;
use tokio::time::Instant;

use crate::CommandError;

/// Longest line; objects that a server stores are smaller.
const LINE_LEN_MAX: usize = 16 << 20;

/// Reads a response line by line, or part by part.
#[derive(Debug)]
pub struct LineReader {
    body: ResponseBody,
    buffer: BytesMut,
    ended: bool,
    deadline: Option<Instant>,
    /// Whether passing the deadline is an error.
    is_complete: bool,
}

impl LineReader {
    /// Of this response.
    pub fn new(response: Response<ResponseBody>) -> Self {
        Self {
            body: response.into_body(),
            buffer: BytesMut::new(),
            ended: false,
            deadline: None,
            is_complete: false,
        }
    }

    /// The same, ending after this time; never for none.
    #[must_use]
    pub fn ending_after(mut self, time: Duration) -> Self {
        self.deadline = (!time.is_zero()).then(|| Instant::now() + time);
        self
    }

    /// The same, failing after this time; never for none.
    #[must_use]
    pub fn failing_after(self, time: Duration) -> Self {
        Self { is_complete: true, ..self.ending_after(time) }
    }

    /// The next line without its end; the last one may have had none.
    ///
    /// # Errors
    /// When the connection breaks or a line is too long.
    pub async fn next_line(&mut self) -> Result<Option<Bytes>, CommandError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let mut line = self.buffer.split_to(end + 1);
                line.truncate(end);
                return Ok(Some(line.freeze()));
            }
            if self.ended {
                let rest = self.buffer.split().freeze();
                return Ok(Some(rest).filter(|rest| !rest.is_empty()));
            }
            if self.buffer.len() > LINE_LEN_MAX {
                return Err(CommandError::with_text(format!(
                    "a line of the response is longer than {LINE_LEN_MAX} bytes"
                )));
            }
            match self.part().await? {
                Some(part) => self.buffer.extend_from_slice(&part),
                None => self.ended = true,
            }
        }
    }

    /// The next bytes as they arrive.
    ///
    /// # Errors
    /// When the connection breaks, or the time is up that it had.
    pub async fn part(&mut self) -> Result<Option<Bytes>, CommandError> {
        loop {
            let frame = match self.deadline {
                Some(deadline) => {
                    match tokio::time::timeout_at(deadline, self.body.frame()).await {
                        Ok(frame) => frame,
                        Err(_) if self.is_complete => {
                            return Err(CommandError::with_text(
                                "the response did not end within --request-timeout",
                            ));
                        }
                        Err(_) => None,
                    }
                }
                None => self.body.frame().await,
            };
            match frame {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(CommandError::with_text(format!("the connection broke: {error}")));
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}
