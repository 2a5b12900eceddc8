//! SOCKS version 5 (RFC 1928): asks a proxy for a connection to a server, with a user and a password (RFC 1929) where it wants them.

use std::io;
use std::net::IpAddr;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::dial::{DialError, Endpoint};
use crate::userinfo::UrlUser;

/// The version of the protocol.
const VERSION: u8 = 5;
/// The version of the exchange of user and password.
const USER_VERSION: u8 = 1;
const COMMAND_CONNECT: u8 = 1;
const NO_AUTHENTICATION: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;
const NO_METHOD: u8 = 0xff;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// A user and a password that have lengths of a byte.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SocksUser(UrlUser);

impl SocksUser {
    /// `None` when the user is empty, or one of both has more than 255 bytes.
    pub(super) fn new(user: UrlUser) -> Option<Self> {
        let fits = |text: &str| u8::try_from(text.len()).is_ok();
        let is_valid = !user.username.is_empty() && fits(&user.username) && fits(&user.password);
        is_valid.then_some(Self(user))
    }

    pub(super) fn username(&self) -> &str {
        &self.0.username
    }

    pub(super) fn password(&self) -> &str {
        &self.0.password
    }
}

/// Why a proxy gives no connection.
#[derive(Debug)]
pub(super) enum SocksError {
    /// The connection broke, or what was received is not SOCKS.
    Broken(io::Error),
    /// The proxy said no.
    Refused(String),
}

impl SocksError {
    /// The error of a proxy, which is named by its host and port.
    pub(super) fn of_proxy(self, proxy: String) -> DialError {
        match self {
            Self::Broken(cause) => DialError::Socks(cause),
            Self::Refused(answer) => DialError::Refused { proxy, answer },
        }
    }
}

impl From<io::Error> for SocksError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// Asks for a connection to `server`; afterwards the stream is that connection. A name is looked up by the proxy. Reads at most 520 bytes, and none that
/// follow the answer.
///
/// # Errors
/// The proxy refuses, or is no proxy of SOCKS.
pub(super) async fn connect(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    user: Option<&SocksUser>,
    server: &Endpoint,
) -> Result<(), SocksError> {
    let request = connect_request(server)?;
    authenticate(stream, user).await?;
    stream.write_all(&request).await?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [version, reply, _, address] = head;
    check_version(version, VERSION)?;
    if reply != 0 {
        return Err(SocksError::Refused(reply_text(reply)));
    }
    // Where the proxy's own end of the connection is, which has no use here.
    let len = match address {
        IPV4 => 4,
        IPV6 => 16,
        NAME => usize::from(stream.read_u8().await?),
        other => return Err(malformed(&format!("an address of the unknown type {other}"))),
    };
    let mut bound = [0; 255];
    stream.read_exact(bound.get_mut(..len).unwrap_or_default()).await?;
    stream.read_u16().await?;
    Ok(())
}

/// Agrees on a method, and sends user and password if the proxy wants them.
async fn authenticate(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    user: Option<&SocksUser>,
) -> Result<(), SocksError> {
    let offer: &[u8] = match user {
        Some(_) => &[VERSION, 2, NO_AUTHENTICATION, USER_AND_PASSWORD],
        None => &[VERSION, 1, NO_AUTHENTICATION],
    };
    stream.write_all(offer).await?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await?;
    let [version, method] = chosen;
    check_version(version, VERSION)?;
    let user = match (method, user) {
        (NO_AUTHENTICATION, _) => return Ok(()),
        (USER_AND_PASSWORD, Some(user)) => user,
        (NO_METHOD, None) => {
            return Err(SocksError::Refused("it wants a user and a password".to_owned()));
        }
        (NO_METHOD, Some(_)) => {
            return Err(SocksError::Refused("no method of authentication is accepted".to_owned()));
        }
        (other, _) => return Err(malformed(&format!("the method {other}, which was not offered"))),
    };
    let mut sent = vec![USER_VERSION];
    push_text(&mut sent, user.username())?;
    push_text(&mut sent, user.password())?;
    stream.write_all(&sent).await?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).await?;
    let [version, status] = answer;
    check_version(version, USER_VERSION)?;
    match status {
        0 => Ok(()),
        _ => Err(SocksError::Refused("user or password are wrong".to_owned())),
    }
}

fn connect_request(server: &Endpoint) -> Result<Vec<u8>, SocksError> {
    let mut request = vec![VERSION, COMMAND_CONNECT, 0];
    match server.host.parse() {
        Ok(IpAddr::V4(address)) => {
            request.push(IPV4);
            request.extend(address.octets());
        }
        Ok(IpAddr::V6(address)) => {
            request.push(IPV6);
            request.extend(address.octets());
        }
        Err(_) => {
            request.push(NAME);
            push_text(&mut request, &server.host)?;
        }
    }
    request.extend(server.port.to_be_bytes());
    Ok(request)
}

/// Appends a text after its length.
fn push_text(to: &mut Vec<u8>, text: &str) -> Result<(), SocksError> {
    let len = u8::try_from(text.len());
    to.push(len.map_err(|_| malformed("a name of more than 255 bytes"))?);
    to.extend(text.as_bytes());
    Ok(())
}

fn check_version(found: u8, wanted: u8) -> Result<(), SocksError> {
    match found == wanted {
        true => Ok(()),
        false => Err(malformed(&format!("the version {found} where {wanted} was expected"))),
    }
}

fn malformed(what: &str) -> SocksError {
    SocksError::Broken(io::Error::new(io::ErrorKind::InvalidData, what))
}

/// What a reply means (RFC 1928, section 6).
fn reply_text(reply: u8) -> String {
    let text = match reply {
        1 => "it failed",
        2 => "its rules do not allow it",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "the time to live has expired",
        7 => "it does not support the command",
        8 => "it does not support the type of the address",
        other => return format!("reply {other}"),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(host: &str) -> Endpoint {
        Endpoint { host: host.to_owned(), port: 6443 }
    }

    fn user() -> SocksUser {
        let user = UrlUser { username: "u".to_owned(), password: "pw".to_owned() };
        SocksUser::new(user).expect("valid")
    }

    /// What is sent to a proxy that answers with these bytes, what it leads to, and what is left of the answers.
    async fn asked(
        server: &str,
        user: Option<&SocksUser>,
        answers: &[u8],
    ) -> (Vec<u8>, Result<(), SocksError>, Vec<u8>) {
        let (mut ours, mut theirs) = tokio::io::duplex(4096);
        theirs.write_all(answers).await.expect("room");
        let done = connect(&mut ours, user, &endpoint(server)).await;
        // The other half ends, so that what is read ends too.
        theirs.shutdown().await.expect("open");
        let mut left = Vec::new();
        ours.read_to_end(&mut left).await.expect("open");
        drop(ours);
        let mut sent = Vec::new();
        theirs.read_to_end(&mut sent).await.expect("open");
        (sent, done, left)
    }

    #[tokio::test]
    async fn a_connection_is_asked_for_by_name_or_address() {
        let v6 = [&[4][..], &[0xfd], &[0; 14], &[1], &[0x19, 0x2b]].concat();
        let accepted = [5, 0, 5, 0, 0, 1, 127, 0, 0, 1, 0, 1, b'x'];
        for (server, wanted) in [
            ("api.test", &b"\x03\x08api.test\x19\x2b"[..]),
            ("10.1.2.3", &[1, 10, 1, 2, 3, 0x19, 0x2b]),
            ("fd00::1", &v6),
        ] {
            let (sent, done, left) = asked(server, None, &accepted).await;
            assert!(done.is_ok(), "{server}: {done:?}");
            assert_eq!(sent, [&[5, 1, 0, 5, 1, 0], wanted].concat(), "{server}");
            assert_eq!(left, b"x", "what follows belongs to the server");
        }
    }

    #[tokio::test]
    async fn user_and_password_are_sent_where_they_are_wanted() {
        let (user, host) = (user(), "10.1.2.3");
        let request = [5, 1, 0, 1, 10, 1, 2, 3, 0x19, 0x2b];
        let answers = [5, 2, 1, 0, 5, 0, 0, 3, 2, b'a', b'b', 0, 1];
        let (sent, done, left) = asked(host, Some(&user), &answers).await;
        assert!(done.is_ok() && left.is_empty(), "{done:?}");
        assert_eq!(sent, [&[5, 2, 0, 2][..], b"\x01\x01u\x02pw", &request].concat());
        let answers = [&[5, 0, 5, 0, 0, 4][..], &[0; 18]].concat();
        let (sent, done, left) = asked(host, Some(&user), &answers).await;
        assert!(done.is_ok() && left.is_empty(), "{done:?}");
        assert_eq!(sent, [&[5, 2, 0, 2][..], &request].concat());
    }

    #[tokio::test]
    async fn what_a_proxy_refuses_and_what_is_no_socks_are_errors() {
        let user = user();
        for (user, answers, wanted) in [
            (None, &[5, 0xff][..], "the proxy p:1 refused the connection: it wants a user"),
            (Some(&user), &[5, 0xff], "no method of authentication"),
            (Some(&user), &[5, 2, 1, 1], "user or password are wrong"),
            (
                None,
                &[5, 0, 5, 5, 0, 1, 0, 0, 0, 0, 0, 0],
                "refused the connection: connection refused",
            ),
            (None, &[5, 0, 5, 77, 0, 1], "reply 77"),
            (None, &[5, 2], "SOCKS failed: the method 2, which was not offered"),
            (None, b"HTTP/1.1 400 Bad Request", "the version 72 where 5 was expected"),
            (None, &[5, 0, 5, 0, 0, 9], "an address of the unknown type 9"),
            (Some(&user), &[5, 2, 5, 0], "the version 5 where 1 was expected"),
        ] {
            let (_, done, _) = asked("h", user, answers).await;
            let error = done.expect_err(wanted).of_proxy("p:1".to_owned());
            let error = proto_daemon::exit::chain(&error);
            assert!(error.contains(wanted), "{error}");
        }
        let (sent, done, _) = asked(&"h".repeat(256), None, &[]).await;
        assert!(done.is_err() && sent.is_empty(), "a name that has no place in a request");
    }

    #[test]
    fn users_have_a_length_of_a_byte() {
        let valid = |username: &str, password: &str| {
            let (username, password) = (username.to_owned(), password.to_owned());
            SocksUser::new(UrlUser { username, password }).is_some()
        };
        let (most, more) = ("x".repeat(255), "x".repeat(256));
        assert!(valid("u", "") && valid(&most, &most));
        assert!(!valid("", "p") && !valid(&more, "p") && !valid("u", &more));
    }
}
