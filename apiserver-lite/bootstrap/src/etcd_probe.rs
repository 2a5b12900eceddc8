//! The members of an external etcd, queried before anything is changed on the host. Each has a short time for its answer.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use proto_api::names::Names;
use proto_client::config::{ClientConfig, Identity, Pem};
use proto_client::{Client, request};
use proto_daemon::exit;
use serde_json::Value;

use crate::external_etcd::ExternalEtcd;
use crate::preflight::{EtcdMember, EtcdSilent};

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer: a line each.
const ANSWER_LEN_MAX: usize = 4096;

/// Queries all members at once: which version each runs, and whether it is healthy.
pub async fn query(etcd: &ExternalEtcd, names: &'static Names) -> Vec<EtcdMember> {
    let one = async |endpoint: &String| EtcdMember {
        endpoint: endpoint.clone(),
        version: version(etcd, endpoint, names).await,
    };
    join_all(etcd.endpoints.iter().map(one)).await
}

async fn version(
    etcd: &ExternalEtcd,
    endpoint: &str,
    names: &'static Names,
) -> Result<String, EtcdSilent> {
    let client = client(etcd, endpoint, names)?;
    let answer = get(&client, "/version").await?;
    let version = answer["etcdserver"].as_str();
    let version =
        version.ok_or_else(|| EtcdSilent("it does not answer as etcd does".to_owned()))?;
    match get(&client, "/health").await?["health"].as_str() {
        Some("true") => Ok(version.to_owned()),
        _ => Err(EtcdSilent("it reports that it is not healthy".to_owned())),
    }
}

fn client(
    etcd: &ExternalEtcd,
    endpoint: &str,
    names: &'static Names,
) -> Result<Client, EtcdSilent> {
    let server = endpoint.parse().map_err(|_| EtcdSilent("it is not a URL".to_owned()))?;
    // The error of the connection does not name them.
    for path in etcd.files().into_iter().filter(|path| !path.is_empty()) {
        File::open(path).map_err(|error| EtcdSilent(format!("cannot read {path}: {error}")))?;
    }
    let mut config = ClientConfig::direct(server);
    let file = |path: &String| Pem::File(PathBuf::from(path));
    config.tls.authority = Some(file(&etcd.ca_file)).filter(|_| !etcd.ca_file.is_empty());
    config.tls.identity =
        Some(Identity { certificate: file(&etcd.cert_file), key: file(&etcd.key_file) })
            .filter(|_| !etcd.cert_file.is_empty());
    let agent = concat!("orchadm/", env!("CARGO_PKG_VERSION"));
    let client = Client::new(&config, names, agent).map_err(|error| silent(&error))?;
    Ok(client.with_deadline(PATIENCE).with_body_len_max(ANSWER_LEN_MAX))
}

async fn get(client: &Client, path: &str) -> Result<Value, EtcdSilent> {
    let answer = client.call(request::get(path.to_owned())).await.map_err(|e| silent(&e))?;
    serde_json::from_slice(&answer.body).map_err(|error| silent(&error))
}

fn silent(error: &(dyn std::error::Error + 'static)) -> EtcdSilent {
    EtcdSilent(exit::chain(error))
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers the next requests with these bodies, each on a connection of its own.
    async fn server(bodies: &'static [&'static str]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            for body in bodies {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        url
    }

    #[tokio::test]
    async fn members_say_their_version_and_whether_they_are_healthy() {
        const GOOD: [&str; 2] = [r#"{"etcdserver":"3.4.23"}"#, r#"{"health":"true"}"#];
        const SICK: [&str; 2] = [r#"{"etcdserver":"3.4.23"}"#, r#"{"health":"false"}"#];
        let endpoints = vec![
            server(&GOOD).await,
            server(&SICK).await,
            server(&["{}"]).await,
            server(&["<html>"]).await,
            "http://127.0.0.1:1".to_owned(),
        ];
        let etcd = ExternalEtcd { endpoints: endpoints.clone(), ..ExternalEtcd::default() };
        let all = query(&etcd, Names::new(Profile::Kubernetes)).await;
        let known: Vec<&String> = all.iter().map(|member| &member.endpoint).collect();
        assert_eq!(known, endpoints.iter().collect::<Vec<_>>());
        let text = |nth: usize| all[nth].version.as_ref().unwrap_err().to_string();
        assert_eq!(all[0].version.as_deref(), Ok("3.4.23"));
        assert!(text(1).contains("not healthy"), "{}", text(1));
        assert!(text(2).contains("as etcd does"), "{}", text(2));
        assert!(!text(3).is_empty() && text(4).contains("refused"), "{}; {}", text(3), text(4));
    }

    #[tokio::test]
    async fn a_certificate_that_is_missing_is_named() {
        let etcd = ExternalEtcd {
            endpoints: vec!["https://127.0.0.1:1".to_owned()],
            ca_file: "/missing/ca.crt".to_owned(),
            ..ExternalEtcd::default()
        };
        let all = query(&etcd, Names::new(Profile::Kubernetes)).await;
        let text = all[0].version.as_ref().unwrap_err().to_string();
        assert!(text.contains("/missing/ca.crt"), "{text}");
    }
}
