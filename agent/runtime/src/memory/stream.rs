//! Why the runtime in memory opens no session: the real rule first, then that it has no streaming
//! server.

use crate::runtime::{RefusalKind, RuntimeRefusal, StreamRequest};

pub(crate) fn refuse(request: &StreamRequest) -> RuntimeRefusal {
    let (kind, message) = match request.has_stderr_beside_terminal() {
        true => (RefusalKind::Other, "tty and stderr cannot both be true"),
        false => (RefusalKind::Unimplemented, "the runtime in memory has no streaming server"),
    };
    RuntimeRefusal { kind, message: message.to_owned() }
}
