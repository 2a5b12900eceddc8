//! The action of a probe or a hook: a command in the container or a request to it. Parsed once from the API object.

use proto_api::IntOrString;
use proto_api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, ProbeHandler,
    TCPSocketAction,
};

/// The action of a probe or a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handler {
    /// Runs a program in the container, without a shell.
    Exec(Vec<String>),
    /// Sends an HTTP request.
    Http(HttpGet),
    /// Opens a TCP connection.
    Tcp {
        /// Host; empty for the pod's address.
        host: String,
        port: u16,
    },
    /// Calls `grpc.health.v1.Health` at the pod's address.
    Grpc {
        port: u16,
        /// Service name in the request; empty for the server as a whole.
        service: String,
    },
    /// Invalid; the text gives the reason for users.
    Unusable(String),
}

/// An HTTP GET request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpGet {
    /// Whether to use TLS; certificates are not verified, as in Kubernetes.
    pub https: bool,
    /// Host; empty for the pod's address.
    pub host: String,
    pub port: u16,
    /// Path with query as written; empty means `/`.
    pub path: String,
    /// Headers that are added to the default ones or replace them.
    pub headers: Vec<(String, String)>,
}

/// Why an API object has no usable action. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum HandlerError {
    #[error("missing probe handler")]
    Missing,
    #[error("couldn't find port: {0:?}")]
    PortName(String),
    #[error("invalid port number: {0}")]
    PortNumber(i32),
}

impl From<HandlerError> for Handler {
    fn from(error: HandlerError) -> Self {
        Self::Unusable(error.to_string())
    }
}

impl Handler {
    /// Reads a probe's handler; a port may be the name of a container port.
    pub fn from_probe(handler: &ProbeHandler, container: &Container) -> Self {
        let ProbeHandler { exec, http_get, tcp_socket, grpc } = handler;
        match grpc {
            Some(grpc) if exec.is_none() && http_get.is_none() && tcp_socket.is_none() => {
                self::grpc(grpc)
            }
            _ => from_actions(exec.as_ref(), http_get.as_ref(), tcp_socket.as_ref(), container),
        }
    }

    /// Reads a hook's handler. `tcpSocket` exists in the API's hook but is not supported, as in Kubernetes.
    pub fn from_hook(handler: &LifecycleHandler, container: &Container) -> Self {
        from_actions(handler.exec.as_ref(), handler.http_get.as_ref(), None, container)
    }
}

fn from_actions(
    exec: Option<&ExecAction>,
    http: Option<&HTTPGetAction>,
    tcp: Option<&TCPSocketAction>,
    container: &Container,
) -> Handler {
    let made = match (exec, http, tcp) {
        (Some(exec), ..) => Ok(Handler::Exec(exec.command.clone())),
        (_, Some(http), _) => port(&http.port, container).map(|port| {
            let headers = http.http_headers.iter();
            Handler::Http(HttpGet {
                https: http.scheme.eq_ignore_ascii_case("https"),
                host: http.host.clone(),
                port,
                path: http.path.clone(),
                headers: headers.map(|h| (h.name.clone(), h.value.clone())).collect(),
            })
        }),
        (_, _, Some(tcp)) => {
            port(&tcp.port, container).map(|port| Handler::Tcp { host: tcp.host.clone(), port })
        }
        (None, None, None) => Err(HandlerError::Missing),
    };
    made.unwrap_or_else(Handler::from)
}

fn grpc(action: &GRPCAction) -> Handler {
    match number(action.port) {
        Ok(port) => Handler::Grpc { port, service: action.service.clone().unwrap_or_default() },
        Err(error) => error.into(),
    }
}

/// Resolves a port given by number or by container port name.
fn port(port: &IntOrString, container: &Container) -> Result<u16, HandlerError> {
    match port {
        IntOrString::Int(port) => number(*port),
        IntOrString::String(name) => {
            match container.ports.iter().find(|known| known.name == *name) {
                Some(known) => number(known.container_port),
                // A number written as a string.
                None => match name.parse() {
                    Ok(port) => number(port),
                    Err(_) => Err(HandlerError::PortName(name.clone())),
                },
            }
        }
    }
}

fn number(port: i32) -> Result<u16, HandlerError> {
    let valid = u16::try_from(port).ok().filter(|port| *port > 0);
    valid.ok_or(HandlerError::PortNumber(port))
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::ContainerPort;

    use super::*;

    #[test]
    fn ports_are_numbers_or_names_of_the_container() {
        let web = ContainerPort { name: "web".into(), container_port: 80, ..Default::default() };
        let container = Container { ports: vec![web], ..Container::default() };
        let text = |text: &str| IntOrString::String(text.into());
        let cases = [
            (IntOrString::Int(8080), Ok(8080)),
            (text("web"), Ok(80)),
            (text("8081"), Ok(8081)),
            (text("db"), Err("couldn't find port: \"db\"".to_owned())),
            (IntOrString::Int(0), Err("invalid port number: 0".to_owned())),
            (IntOrString::Int(70_000), Err("invalid port number: 70000".to_owned())),
        ];
        for (written, expect) in cases {
            let got = port(&written, &container).map_err(|error| error.to_string());
            assert_eq!(got, expect, "{written:?}");
        }
    }

    #[test]
    fn a_hook_has_no_socket_and_a_probe_has() {
        let tcp = TCPSocketAction { port: IntOrString::Int(1), ..Default::default() };
        let hook = LifecycleHandler { tcp_socket: Some(tcp.clone()), ..Default::default() };
        let probe = ProbeHandler { tcp_socket: Some(tcp), ..Default::default() };
        let container = Container::default();
        assert!(matches!(Handler::from_hook(&hook, &container), Handler::Unusable(_)));
        let expect = Handler::Tcp { host: String::new(), port: 1 };
        assert_eq!(Handler::from_probe(&probe, &container), expect);
    }
}
