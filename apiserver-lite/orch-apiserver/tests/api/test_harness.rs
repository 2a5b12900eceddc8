//! A harness that starts `etcd` and `kube-apiserver` from a directory, as controller-runtime's envtest does: the same files, arguments and polls.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

use crate::ephemeral::Killed;
use crate::etcd::etcd_process::free_port;
use crate::support::Api;

/// Time between two polls.
const POLL: Duration = Duration::from_millis(100);
/// The harness's own patience, reached only on failure.
const START_MAX: Duration = Duration::from_secs(120);

struct Authority {
    pem: String,
    key_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let (pem, key_pem) = (params.self_signed(&key).unwrap().pem(), key.serialize_pem());
    Authority { pem, key_pem, issuer: Issuer::new(params, key) }
}

/// A certificate and its key.
fn issue(of: &Authority, names: &[&str], user: Option<(&str, &str)>) -> (String, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some((name, group)) = user {
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.extended_key_usages = vec![match user {
        Some(_) => ExtendedKeyUsagePurpose::ClientAuth,
        None => ExtendedKeyUsagePurpose::ServerAuth,
    }];
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, &of.issuer).unwrap().pem(), key.serialize_pem())
}

/// An address that is free, as the harness suggests one.
fn suggest() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

fn assets(dir: &Path) {
    let made =
        Command::new(env!("CARGO_BIN_EXE_orch-apiserver")).arg("assets").arg(dir).output().unwrap();
    let line = String::from_utf8(made.stdout).unwrap();
    let expected = format!("KUBEBUILDER_ASSETS={}\n", dir.canonicalize().unwrap().display());
    assert_eq!(line, expected, "{}", String::from_utf8_lossy(&made.stderr));
}

/// Whether `--help` lists a flag at the start of a line, which decides what the harness gives.
fn lists(program: &Path, flag: &str) -> bool {
    let help = Command::new(program).arg("--help").output().unwrap();
    assert!(help.status.success());
    let mut text = String::from_utf8(help.stdout).unwrap();
    text.push_str(&String::from_utf8(help.stderr).unwrap());
    text.lines().any(|line| line.trim_start().starts_with(&format!("--{flag}")))
}

fn spawn(program: &Path, arguments: &[String]) -> Killed {
    let mut command = Command::new(program);
    Killed(command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Polls until something listens.
async fn listening(address: SocketAddr, process: &mut Killed) {
    let deadline = Instant::now() + START_MAX;
    while TcpStream::connect(address).is_err() {
        assert!(process.0.try_wait().unwrap().is_none(), "it has ended");
        assert!(Instant::now() < deadline, "nothing listens on {address}");
        tokio::time::sleep(POLL).await;
    }
}

/// GET over plain HTTP: status line and body.
fn plain_get(address: SocketAddr, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn end(mut process: Killed) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(process.0.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let status = process.0.wait().unwrap();
    assert!(status.success() && status.signal().is_none(), "{status}");
}

fn kubeconfig(
    address: SocketAddr,
    authority: &str,
    (certificate, key): &(String, String),
) -> String {
    format!(
        "    certificate-authority-data: {}\n    server: https://{address}\n    client-certificate-data: {}\n    client-key-data: {}\n",
        STANDARD.encode(authority),
        STANDARD.encode(certificate),
        STANDARD.encode(key),
    )
}

/// Starts the stand-in for etcd as the harness does, and says where it is.
async fn start_etcd(program: &Path, data: &Path) -> (Killed, SocketAddr) {
    assert!(!lists(program, "unsafe-no-fsync"));
    let version = Command::new(program).arg("--version").output().unwrap();
    assert!(version.status.success() && version.stdout.starts_with(b"etcd Version: "));
    let (client, peer) = (suggest(), suggest());
    let mut etcd = spawn(
        program,
        &[
            format!("--advertise-client-urls=http://{client}"),
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls=http://{client}"),
            format!("--listen-peer-urls=http://{peer}"),
        ],
    );
    listening(client, &mut etcd).await;
    assert!(plain_get(client, "/health").starts_with("HTTP/1.1 200 "));
    assert!(plain_get(client, "/v3/kv").starts_with("HTTP/1.1 501 "));
    (etcd, client)
}

/// What the harness gives to kube-apiserver.
fn kube_apiserver_arguments(certs: &Path, etcd: SocketAddr, address: SocketAddr) -> Vec<String> {
    let file = |name: &str| certs.join(name).display().to_string();
    vec![
        "--allow-privileged=true".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        // As arguments that a suite appends come.
        "--feature-gates=AllAlpha=false".to_owned(),
        "--feature-gates=AllBeta=true".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--cert-dir={}", certs.display()),
        format!("--client-ca-file={}", file("client-cert-auth-ca.crt")),
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        format!("--etcd-servers=http://{etcd}"),
        format!("--secure-port={}", address.port()),
        format!("--service-account-issuer=https://{address}/"),
        format!("--service-account-key-file={}", file("sa-signer.crt")),
        format!("--service-account-signing-key-file={}", file("sa-signer.key")),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
    ]
}

#[tokio::test]
async fn an_unchanged_harness_starts_and_stops_both_programs() {
    let root = tempfile::tempdir().unwrap();
    let (programs, data, certs) =
        (root.path().join("assets"), root.path().join("etcd"), root.path().join("apiserver"));
    for dir in [&data, &certs] {
        std::fs::create_dir(dir).unwrap();
    }
    assets(&programs);
    let kube_apiserver = programs.join("kube-apiserver");
    let (etcd, client) = start_etcd(&programs.join("etcd"), &data).await;

    let (serving, users, accounts) = (authority(), authority(), authority());
    let (certificate, key) = issue(&serving, &["localhost", "127.0.0.1"], None);
    for (name, content) in [
        ("apiserver.crt", &certificate),
        ("apiserver.key", &key),
        ("sa-signer.crt", &accounts.pem),
        ("sa-signer.key", &accounts.key_pem),
        ("client-cert-auth-ca.crt", &users.pem),
    ] {
        std::fs::write(certs.join(name), content).unwrap();
    }
    let before = names_in(&certs);
    assert!(!lists(&kube_apiserver, "insecure-port"), "the harness would give it");
    let address = suggest();
    let arguments = kube_apiserver_arguments(&certs, client, address);
    let mut server = spawn(&kube_apiserver, &arguments);
    listening(address, &mut server).await;
    let admin = issue(&users, &[], Some(("default", "system:masters")));
    let api = Api::new(&kubeconfig(address, &serving.pem, &admin));
    // The harness polls without credentials, and then uses the server as this user.
    assert_eq!(api.anonymous("/healthz").await.code(), 200);
    let maps = "/api/v1/namespaces/default/configmaps";
    api.post(maps, r#"{"metadata":{"name":"a"}}"#).await.expect(201);
    let pod = r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    api.post("/api/v1/namespaces/default/pods", pod).await.expect(201);
    let token = api
        .post("/api/v1/namespaces/default/serviceaccounts", r#"{"metadata":{"name":"s"}}"#)
        .await;
    token.expect(201);
    let token =
        api.post("/api/v1/namespaces/default/serviceaccounts/s/token", "{}").await.expect(201);
    let bearer = format!("Bearer {}", token["status"]["token"].as_str().unwrap());
    let headers = [("authorization", bearer.as_str())];
    let seen = api.without_certificate(Method::GET, maps, &headers, "").await.expect(403);
    assert!(
        seen["message"].as_str().unwrap().contains("system:serviceaccount:default:s"),
        "{seen}"
    );
    let jane = issue(&users, &[], Some(("jane", "dev")));
    let jane = Api::new(&kubeconfig(address, &serving.pem, &jane));
    jane.get(maps).await.expect(403);
    // State is put back for suites that want it.
    api.post("/store/restore", "").await.expect(201);
    api.get(&format!("{maps}/a")).await.expect(404);

    end(server);
    end(etcd);
    assert_eq!(names_in(&certs), before, "nothing was written");
    assert_eq!(names_in(&data), [""; 0]);
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = dir.read_dir().unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}
