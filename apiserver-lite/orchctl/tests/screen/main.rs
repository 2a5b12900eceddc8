//! The full screen in a real terminal, against an API server in this process.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../answers/server.rs"]
#[allow(dead_code, reason = "shared with the test of answers, which asks more")]
mod server;
mod states;
mod terminal;
mod terminal_svg;

use std::path::Path;

use proto_api::yaml;
use serde_json::{Value, json};
use server::Server;
use terminal::Terminal;

const OBJECTS: &str = include_str!("objects.yaml");

/// A server with objects in their states.
async fn start_server() -> Server {
    let server = Server::start().await;
    server.create(OBJECTS).await;
    for object in yaml::parse_all(OBJECTS).expect("valid") {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        if let (Some("Pod"), Some(name), Some(namespace)) =
            (text("/kind"), text("/metadata/name"), text("/metadata/namespace"))
        {
            let patch = json!({"status": object["status"]}).to_string();
            let arguments = ["patch", "pod", name, "-n", namespace, "--subresource=status"];
            server.run(&[&arguments[..], &["--type=merge", "-p", &patch]].concat()).await;
        }
    }
    server
}

/// Such a server, and the line that starts the program in a shell: what it leaves behind is shown after it.
async fn prepare() -> (Server, String) {
    let server = start_server().await;
    let program = env!("CARGO_BIN_EXE_orchctl");
    let config = server.path().join("config");
    let line = format!(
        "echo before; {program} --kubeconfig {} ui -A; echo ended with $?; stty -a | grep -o '[-]*icanon'",
        config.display()
    );
    (server, line)
}

fn is_skipped(name: &str) -> bool {
    let skipped = !terminal::is_here();
    if skipped {
        println!("SKIPPED {name}: tmux is not here");
    }
    skipped
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_lead_through_the_views() {
    if is_skipped("keys_lead_through_the_views") {
        return;
    }
    let (server, line) = prepare().await;
    let terminal = Terminal::start(server.path(), 100, 24, &line);
    let text = terminal.wait_for("warehouse-0");
    assert!(text.contains("NAMESPACE") && !text.contains("before"), "{text}");
    assert!(text.contains("17  3 failing  5 not ready"), "{text}");
    // The last but one.
    terminal.press(&["End", "k", "w"]);
    terminal.wait_for("why pod/search-1");
    let why = terminal.coloured();
    terminal.press(&["q"]);
    terminal.wait_for("STATUS");
    if let Some(directory) = std::env::var_os("ORCH_PICTURES") {
        let picture = terminal_svg::draw(&[&terminal.coloured(), &why], 100);
        std::fs::write(Path::new(&directory).join("full-screen.svg"), picture).expect("a file");
    }
    // What happens later is shown, too.
    server.run(&["delete", "pod", "cart-2", "-n", "shop", "--now", "--wait=false"]).await;
    terminal.wait_until("no cart-2", |text| !text.contains("cart-2"));
    terminal.press(&["1"]);
    terminal.wait_for("worker-1");
    terminal.press(&["3"]);
    let text = terminal.wait_for("^[]0;owned\\u{7}");
    assert!(text.contains("Back-off"), "{text}");
    terminal.press(&["2"]);
    // The view of events names the pod too.
    terminal.wait_until("the pod", |text| text.contains("STATUS") && text.contains("cart-1"));
    terminal.press(&["/", "c", "a", "r", "t", "Enter", "Enter"]);
    terminal.wait_for("pod/cart-1");
    terminal.press(&["q", "w"]);
    terminal.wait_for("why pod/cart-1");
    terminal.press(&["q", "l"]);
    terminal.wait_for("shop/cart-1 main");
    terminal.press(&["?"]);
    terminal.wait_for("describe the object");
    terminal.press(&["q", "q"]);
    let text = terminal.wait_for("ended with 0");
    assert!(text.contains("before"), "the former screen is not back:\n{text}");
    terminal.wait_until("icanon", |text| text.lines().any(|line| line == "icanon"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_given_back_and_may_have_any_size() {
    if is_skipped("the_terminal_is_given_back_and_may_have_any_size") {
        return;
    }
    let (server, line) = prepare().await;
    for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        // The program's own number, not that of another in the same test.
        let line = line.replacen("; ", "; sh -c 'echo $$ >pid; exec \"$@\"' sh ", 1);
        let line = format!("cd {}; {line}", server.path().display());
        let terminal = Terminal::start(server.path(), 80, 24, &line);
        terminal.wait_for("cart-1");
        terminal.resize(1, 1);
        terminal.resize(120, 30);
        terminal.wait_for("cart-1");
        let pid = std::fs::read_to_string(server.path().join("pid")).expect("a number");
        let sent = tokio::process::Command::new("kill").args(["-s", signal, pid.trim()]).status();
        assert!(sent.await.expect("kill").success());
        terminal.wait_for(&format!("ended with {code}"));
        terminal.wait_until("icanon", |text| text.lines().any(|line| line == "icanon"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_it_says_so() {
    let server = Server::start().await;
    let answer = server.ask(&["ui"]).await;
    assert_eq!(answer.code, Some(1));
    assert_eq!(answer.err, "error: ui needs a terminal: use get, events and logs without one\n");
}
