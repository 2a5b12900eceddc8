//! What a peer sends is read inside a boundary of panics ([`proto_daemon::panics`]), whether the program is the server or the client of the connection.

use crate::{check, is_generated, is_test, production, sources};

/// Ways to run a connection outside of all boundaries, where a panic ends the program.
const OUTSIDE: &[&str] = &["TokioExecutor", "tokio::spawn(connection"];

#[test]
fn connections_run_inside_boundaries() {
    let mut offenders = Vec::new();
    for (path, source) in sources() {
        // Other connections are with the kernel.
        let is_http = source.contains("hyper");
        if !is_http || is_test(&path) || is_generated(&path) || path.contains("/testing/") {
            continue;
        }
        for (number, line) in production(&source).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if OUTSIDE.iter().any(|way| code.contains(way)) {
                offenders.push(format!("{path}:{}", number + 1));
            }
        }
    }
    check(
        "tasks of connections are spawned by proto/daemon/src/panics.rs: spawn, IsolatedExecutor",
        offenders,
    );
}
