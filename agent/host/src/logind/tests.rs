//! A real bus with a simulated logind.

use std::process::{Child, Command, Stdio};

use super::*;
use crate::dbus::message::{Message, MessageKind};

/// A bus, stopped at the end of the test.
struct Daemon {
    dir: tempfile::TempDir,
    child: Child,
}

impl Daemon {
    /// `None`, with a message, if no bus can be started.
    async fn start(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("bus");
        let config = format!(
            "<busconfig><listen>unix:path={}</listen><auth>EXTERNAL</auth>\
             <policy context='default'><allow own='*'/><allow send_destination='*'/>\
             <allow receive_sender='*'/></policy></busconfig>",
            socket.display()
        );
        std::fs::write(dir.path().join("bus.conf"), config).unwrap();
        let started = Command::new("dbus-daemon")
            .arg("--nofork")
            .arg(format!("--config-file={}", dir.path().join("bus.conf").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = started else {
            eprintln!("SKIPPED {test}: there is no dbus-daemon");
            return None;
        };
        let daemon = Self { dir, child };
        for _ in 0..6000 {
            if Bus::connect(&daemon.socket()).await.is_ok() {
                return Some(daemon);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the bus does not come up");
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("bus")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An array of 2 MiB.
fn long_array() -> Vec<u8> {
    let len: u32 = 2 << 20;
    let mut body = len.to_le_bytes().to_vec();
    body.resize(len as usize + 4, 0);
    body
}

/// Simulates logind: replies to `Inhibit` with one end of a socket pair, and to property reads; then signals a shutdown once.
async fn service(socket: std::path::PathBuf, ready: tokio::sync::oneshot::Sender<()>) -> OwnedFd {
    let mut bus = Bus::connect(&socket).await.unwrap();
    let own = "org.freedesktop.DBus";
    let name =
        Message::call(own, "/org/freedesktop/DBus", (own, "RequestName"), &[Text(SERVICE), Int(0)]);
    // The flags of RequestName are unsigned; 0 has the same bytes.
    let name = Message { signature: "su".into(), ..name };
    bus.send_message(&name, None).await.unwrap();
    ready.send(()).unwrap();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let (ours, theirs): (OwnedFd, OwnedFd) = (ours.into(), theirs.into());
    let mut inhibited = false;
    let client = loop {
        let call = bus.receive().await.unwrap().message;
        let answer = Message {
            kind: MessageKind::Return,
            reply_to: call.serial,
            destination: call.sender.clone(),
            ..Message::default()
        };
        match call.member.as_str() {
            "Inhibit" => {
                assert_eq!(call.signature, "ssss");
                let answer =
                    Message { signature: "h".into(), body: vec![0; 4], descriptors: 1, ..answer };
                bus.send_message(&answer, Some(&theirs)).await.unwrap();
                inhibited = true;
            }
            "Get" => {
                let body = b"\x01t\0\0\0\0\0\0\x40\x4b\x4c\0\0\0\0\0".to_vec();
                let answer = Message { signature: "v".into(), body, ..answer };
                bus.send_message(&answer, None).await.unwrap();
                if inhibited {
                    break call.sender;
                }
            }
            _ => {}
        }
    };
    let signal = Message {
        kind: MessageKind::Signal,
        path: PATH.into(),
        interface: INTERFACE.into(),
        member: SIGNAL.into(),
        signature: "b".into(),
        body: vec![1, 0, 0, 0],
        ..Message::default()
    };
    // Any process may address a connection; the bus compares no rule with that.
    let cancelled = Message { body: vec![0; 4], destination: client, ..signal.clone() };
    let mut other = Bus::connect(&socket).await.unwrap();
    other.send_message(&cancelled, None).await.unwrap();
    let long = Message { signature: "ay".into(), body: long_array(), ..cancelled };
    other.send_message(&long, None).await.unwrap();
    other.call(own, "/org/freedesktop/DBus", (own, "GetId"), &[]).await.unwrap();
    bus.send_message(&signal, None).await.unwrap();
    // The bus delivers accepted messages even if the sender disconnects; waits until the other end is closed nevertheless.
    ours
}

#[tokio::test]
async fn an_inhibitor_delays_the_shutdown_and_its_broadcast_is_received() {
    let Some(daemon) =
        Daemon::start("an_inhibitor_delays_the_shutdown_and_its_broadcast_is_received").await
    else {
        return;
    };
    let (ready, up) = tokio::sync::oneshot::channel();
    let playing = tokio::spawn(service(daemon.socket(), ready));
    up.await.unwrap();
    let mut logind = Logind::connect(&daemon.socket()).await.unwrap();
    let inhibitor = logind.inhibit("orchlet", "pods end first").await.unwrap();
    assert_eq!(logind.delay_max().await.unwrap(), Duration::from_secs(5));
    assert!(logind.shutdown().await.unwrap());
    let ours = playing.await.unwrap();
    let mut other_end = std::os::unix::net::UnixStream::from(ours);
    other_end.set_nonblocking(true).unwrap();
    let mut byte = [0];
    let held = std::io::Read::read(&mut other_end, &mut byte).unwrap_err();
    assert_eq!(held.kind(), std::io::ErrorKind::WouldBlock, "held");
    drop(inhibitor);
    assert_eq!(std::io::Read::read(&mut other_end, &mut byte).unwrap(), 0, "let go");
}

#[tokio::test]
async fn a_machine_without_logind_is_an_error() {
    let test = "a_machine_without_logind_is_an_error";
    assert!(Logind::connect(Path::new("/nonexistent/bus")).await.is_err());
    let Some(daemon) = Daemon::start(test).await else { return };
    let mut logind = Logind::connect(&daemon.socket()).await.unwrap();
    let error = logind.inhibit("orchlet", "x").await.unwrap_err();
    assert!(matches!(error, BusError::Failed { .. }), "{error:?}");
}
