use super::*;
use proto_api::names::{Names, Profile};
use proto_client::{Client, ClientConfig};
use proto_daemon::statusz::StatusBoard;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Only reached if a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn web() -> ServiceId {
    ServiceId::new("default", "web")
}

fn text(response: &Response<Full<Bytes>>, header: &str) -> String {
    response.headers().get(header).unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_balancer_hears_how_many_endpoints_there_are() {
    let check = |local_endpoints| Some(HealthCheck { port: 30000, local_endpoints });
    let two = answer(&web(), check(2), true);
    assert_eq!(two.status(), 200);
    assert_eq!(text(&two, "content-type"), "application/json");
    assert_eq!(text(&two, "x-content-type-options"), "nosniff");
    assert_eq!(text(&two, "x-load-balancing-endpoint-weight"), "2");
    for (check, healthy) in [(check(0), true), (None, true), (check(2), false)] {
        assert_eq!(answer(&web(), check, healthy).status(), 503, "{check:?} {healthy}");
    }
}

#[tokio::test]
async fn the_body_is_what_balancers_parse() {
    use http_body_util::BodyExt;
    let check = Some(HealthCheck { port: 30000, local_endpoints: 3 });
    let body = answer(&web(), check, true).into_body().collect().await.unwrap().to_bytes();
    let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let expected = serde_json::json!({
        "service": {"namespace": "default", "name": "web"},
        "localEndpoints": 3,
        "serviceProxyHealthy": true,
    });
    assert_eq!(json, expected);
}

#[tokio::test]
async fn servers_listen_everywhere_or_at_addresses_in_the_blocks() {
    assert_eq!(addresses(&[]).await.unwrap(), [IpAddr::V6(Ipv6Addr::UNSPECIFIED)]);
    let block = |text: &str| [text.parse::<Cidr>().unwrap()];
    assert_eq!(addresses(&block("127.0.0.0/8")).await.unwrap(), [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    assert!(matches!(addresses(&block("240.0.0.0/4")).await, Err(ListenError::NoAddress)));
}

/// Servers at loopback addresses, with their inputs.
struct Running {
    checks: watch::Sender<Arc<HealthChecks>>,
    board: StatusBoard,
    drain: Drain,
}

impl Running {
    fn start() -> Self {
        let (checks, receiver) = watch::channel(Arc::default());
        let names = Names::new(Profile::default());
        let config = ClientConfig::direct("http://127.0.0.1:1".parse().unwrap());
        let client = Client::new(&config, names, "test").unwrap();
        let (recorder, _writer) = proto_client::events::recorder(client, "proxy", "node");
        let (board, drain) = (StatusBoard::default(), Drain::default());
        let servers = HealthCheckServers {
            checks: receiver,
            sync_health: SyncHealth::default(),
            blocks: vec!["127.0.0.0/8".parse().unwrap()],
            node_name: "node".into(),
            recorder,
            status: board.task("health checks"),
            retry: Backoff { first: Duration::from_millis(5), longest: Duration::from_millis(50) },
        };
        tokio::spawn(servers.run(drain.watch()));
        Self { checks, board, drain }
    }

    fn tell(&self, checks: &[(&str, u16, usize)]) {
        let check = |&(name, port, local_endpoints): &(&str, u16, usize)| {
            (ServiceId::new("default", name), HealthCheck { port, local_endpoints })
        };
        self.checks.send_replace(Arc::new(checks.iter().map(check).collect()));
    }
}

/// The status of a port's response; `None` if nothing listens.
async fn status(port: u16) -> Option<u16> {
    let asked = move || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.get(9..12)?.parse().ok()
    };
    tokio::task::spawn_blocking(asked).await.unwrap()
}

async fn wait_for(port: u16, expected: Option<u16>) {
    let reached = async {
        while status(port).await != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    assert!(reached.is_ok(), "port {port} does not answer {expected:?}");
}

#[tokio::test]
async fn servers_follow_services_and_wait_for_ports_that_are_taken() {
    // Below the ports of connections: no other socket gets it in between.
    let begin = 20_000 + u16::try_from(std::process::id() % 9_000).unwrap();
    let bind = |port| std::net::TcpListener::bind(("127.0.0.1", port)).ok();
    let taken = (begin..begin + 1000).find_map(bind).unwrap();
    let port = taken.local_addr().unwrap().port();
    let running = Running::start();
    running.tell(&[("web", port, 1)]);
    let failed = async {
        while !running.board.text().contains("1 ports cannot be bound") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, failed).await.unwrap();
    drop(taken);
    wait_for(port, Some(200)).await;
    running.tell(&[("web", port, 0)]);
    wait_for(port, Some(503)).await;
    // Another Service takes over the port, then none has it.
    running.tell(&[("other", port, 2)]);
    wait_for(port, Some(200)).await;
    running.tell(&[]);
    wait_for(port, None).await;
    running.drain.drain(PATIENCE).await;
}
