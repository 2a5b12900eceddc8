//! Runs a test in a network namespace of its own: the test binary is executed again, for that one test, in a child in
//! new namespaces. Without root the child becomes root of a user namespace.

#![allow(unsafe_code, reason = "pre_exec is the only way to leave a namespace before exec")]
#![allow(dead_code, reason = "each test binary uses what it needs")]

use std::ffi::CString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sched::{CloneFlags, unshare};

/// Set for the child.
const MARK: &str = "ORCH_TEST_IN_NAMESPACE";

/// Runs `body` in a new network namespace with loopback up. `test` is the test's path.
pub fn in_namespace(test: &str, body: impl FnOnce()) {
    let unprivileged =
        !nix::unistd::geteuid().is_root() || std::env::var_os("ORCH_TEST_USER_NAMESPACE").is_some();
    run_in(test, unprivileged, body);
}

/// The same in a user namespace, also for root: without privileges on the host.
pub fn in_user_namespace(test: &str, body: impl FnOnce()) {
    run_in(test, true, body);
}

fn run_in(test: &str, unprivileged: bool, body: impl FnOnce()) {
    if std::env::var(MARK).is_ok_and(|inside| inside == test) {
        run(&["ip", "link", "set", "lo", "up"]);
        return body();
    }
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let maps = [
        (c"/proc/self/setgroups".to_owned(), "deny".to_owned()),
        (c"/proc/self/uid_map".to_owned(), format!("0 {uid} 1")),
        (c"/proc/self/gid_map".to_owned(), format!("0 {gid} 1")),
    ];
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(MARK, test);
    // SAFETY: between fork and exec the child makes system calls on memory prepared before the fork only.
    unsafe {
        child.pre_exec(move || leave(unprivileged, &maps));
    }
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "in the namespace:\n{text}\n{errors}");
    assert!(text.contains("1 passed"), "{test} names no test:\n{text}");
    println!("{text}");
}

fn leave(unprivileged: bool, maps: &[(CString, String)]) -> std::io::Result<()> {
    if !unprivileged {
        return Ok(unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?);
    }
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    for (path, text) in maps {
        let file = nix::fcntl::open(
            path.as_c_str(),
            nix::fcntl::OFlag::O_WRONLY,
            nix::sys::stat::Mode::empty(),
        )?;
        nix::unistd::write(&file, text.as_bytes())?;
    }
    Ok(())
}

/// Kills a program when the thread that started it ends, so that a failed test leaves none behind.
pub fn die_with_us(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec the child makes one system call, on nothing of ours.
    unsafe {
        command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?))
    }
}

/// A raw IPv4 socket of a protocol without kernel support. Received packets include the IP header; ports of addresses
/// are ignored.
pub fn raw_socket(protocol: i32) -> std::net::UdpSocket {
    raw_socket_of(libc::AF_INET, protocol)
}

/// The same for IPv6. Received packets do not include the IP header.
pub fn raw_socket_v6(protocol: i32) -> std::net::UdpSocket {
    raw_socket_of(libc::AF_INET6, protocol)
}

fn raw_socket_of(domain: i32, protocol: i32) -> std::net::UdpSocket {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: socket takes no memory; what it returns is checked before it is owned.
    let fd = unsafe { libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    assert!(fd >= 0, "raw socket: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }.into()
}

/// Runs a command and returns its output; fails the test if the command fails.
pub fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {} {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
