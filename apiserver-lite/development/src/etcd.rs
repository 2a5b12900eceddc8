//! The stand-in for etcd: test harnesses start a program of that name next to the API server and wait until it answers `/health`. This one answers that, and
//! stores nothing: the API server has its store within itself.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs as _};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use proto_daemon::admin::AdminServer;
use proto_daemon::drain::{Drain, stop_signal};

/// The flag that says where clients are listened to.
const LISTEN: &str = "listen-client-urls";
/// Where etcd listens without it.
const LISTEN_DEFAULT: &str = "http://localhost:2379";
/// Most arguments.
const ARGUMENTS_MAX: usize = 128;

/// What `--help` says.
pub const HELP: &str = "\
etcd: a stand-in that belongs to an API server with a store of its own, for test harnesses that start etcd beside it.
It answers GET /health and /version, and stores nothing.

Flags:
  --listen-client-urls URL   where it listens; http only (default http://localhost:2379)
  --help                     says this
  --version                  says which one it is
Every other flag has no effect.
";

/// What `--version` says.
pub const VERSION: &str =
    concat!("etcd Version: ", env!("CARGO_PKG_VERSION"), " (a stand-in that stores nothing)\n");

/// What the arguments ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdCommand {
    /// The help text.
    Help,
    Version,
    /// To listen.
    Serve {
        /// Where.
        address: SocketAddr,
        /// The flags without effect.
        ignored: Vec<String>,
    },
}

/// Why the stand-in does not start.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// An argument is not understood.
    #[error("{0}")]
    Usage(String),
    /// The port cannot be listened to.
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Signals cannot be awaited.
    #[error("cannot wait for signals")]
    Signal(#[source] std::io::Error),
}

/// Reads the arguments after the program's name.
///
/// # Errors
/// A URL that cannot be listened to, or too many arguments.
pub fn read_arguments(arguments: &[OsString]) -> Result<EtcdCommand, EtcdError> {
    let mut url = LISTEN_DEFAULT.to_owned();
    let mut ignored = Vec::new();
    if arguments.len() > ARGUMENTS_MAX {
        return Err(EtcdError::Usage(format!("more than {ARGUMENTS_MAX} arguments")));
    }
    let mut rest = arguments.iter().map(|text| text.to_string_lossy());
    while let Some(argument) = rest.next() {
        let (flag, is_flag) = (argument.trim_start_matches('-'), argument.starts_with('-'));
        let (name, value) =
            flag.split_once('=').map_or((flag, None), |(n, v)| (n, Some(v.to_owned())));
        match name {
            "help" | "h" if is_flag => return Ok(EtcdCommand::Help),
            "version" if is_flag || arguments.len() == 1 => return Ok(EtcdCommand::Version),
            LISTEN if is_flag => {
                let missing = || EtcdError::Usage(format!("--{LISTEN}: expected a URL"));
                let value = value.or_else(|| rest.next().map(std::borrow::Cow::into_owned));
                url = value.ok_or_else(missing)?;
            }
            _ if is_flag => ignored.push(format!("--{name}")),
            // The value of the flag before it.
            _ => {}
        }
    }
    // Several may be given: harnesses give one.
    let first = url.split(',').next().unwrap_or_default();
    Ok(EtcdCommand::Serve { address: address(first)?, ignored })
}

fn address(url: &str) -> Result<SocketAddr, EtcdError> {
    let wrong = || EtcdError::Usage(format!("--{LISTEN}: expected http://HOST:PORT, got {url:?}"));
    let host = url.strip_prefix("http://").ok_or_else(wrong)?.trim_end_matches('/');
    let mut found = host.to_socket_addrs().map_err(|_| wrong())?;
    found
        .find(SocketAddr::is_ipv4)
        .or_else(|| host.to_socket_addrs().ok()?.next())
        .ok_or_else(wrong)
}

/// Answers until a stop signal.
///
/// # Errors
/// The port is taken.
pub async fn run(address: SocketAddr) -> Result<(), EtcdError> {
    let listening = AdminServer::bind(address).await;
    let listening = listening.map_err(|source| EtcdError::Listen { address, source })?;
    let drain = Drain::default();
    let serving = listening.serve(answer, drain.watch());
    tokio::select! {
        () = serving => Ok(()),
        signal = stop_signal() => signal.map(drop).map_err(EtcdError::Signal),
    }
}

fn answer<B>(request: &Request<B>) -> Response<Full<Bytes>> {
    let (code, text) = match request.uri().path() {
        "/health" => (200, "{\"health\":\"true\",\"reason\":\"\"}\n"),
        "/version" => (200, "{\"etcdserver\":\"stand-in\",\"etcdcluster\":\"stand-in\"}\n"),
        _ => (
            501,
            "{\"error\":\"this is a stand-in for etcd: it answers /health and /version and stores nothing\"}\n",
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<EtcdCommand, String> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        read_arguments(&arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn the_arguments_of_a_harness_are_understood() {
        let asked = read(&[
            "--advertise-client-urls=http://127.0.0.1:41111",
            "--data-dir=/tmp/k8s_test_framework_1",
            "--listen-client-urls=http://127.0.0.1:41111",
            "--listen-peer-urls=http://127.0.0.1:41112",
            "--unsafe-no-fsync=true",
        ]);
        let ignored =
            ["--advertise-client-urls", "--data-dir", "--listen-peer-urls", "--unsafe-no-fsync"];
        let ignored = ignored.map(str::to_owned).to_vec();
        let address = SocketAddr::from(([127, 0, 0, 1], 41111));
        assert_eq!(asked, Ok(EtcdCommand::Serve { address, ignored }));
        assert_eq!(read(&["--help"]), Ok(EtcdCommand::Help));
        for version in ["--version", "-version", "--version=true", "version"] {
            assert_eq!(read(&[version]), Ok(EtcdCommand::Version));
        }
        assert!(matches!(read(&["--name", "version"]), Ok(EtcdCommand::Serve { .. })));
        let separate = read(&["--listen-client-urls", "http://127.0.0.1:1/"]);
        assert!(matches!(separate, Ok(EtcdCommand::Serve { address, .. }) if address.port() == 1));
    }

    #[test]
    fn invalid_listen_urls_are_refused() {
        for url in
            ["https://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1", "http://", "unix:///x"]
        {
            let error = read(&[&format!("--listen-client-urls={url}")]).unwrap_err();
            assert!(error.contains(LISTEN), "{error}");
        }
        assert!(read(&["--listen-client-urls"]).is_err());
        let many: Vec<String> = (0..=ARGUMENTS_MAX).map(|nth| format!("--f{nth}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(read(&many).is_err());
        // None is dropped: the last one is read, too.
        let last = [&many[..ARGUMENTS_MAX - 1], &["--listen-client-urls=http://127.0.0.1:7"]];
        let last = read(&last.concat());
        assert!(matches!(last, Ok(EtcdCommand::Serve { address, .. }) if address.port() == 7));
    }

    #[test]
    fn health_is_answered_and_nothing_is_stored() {
        let code = |path: &str| answer(&Request::get(path).body(()).unwrap()).status().as_u16();
        assert_eq!([code("/health"), code("/version"), code("/v3/kv/put")], [200, 200, 501]);
    }
}
