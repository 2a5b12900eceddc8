//! Tables of `get` on a terminal have the colours of states, and nowhere else.

use crate::{Terminal, is_skipped, start_server};

/// A state as tmux shows its colour.
fn coloured(number: u8, state: &str) -> String {
    format!("\u{1b}[{number}m{state}\u{1b}[39m")
}

#[tokio::test(flavor = "multi_thread")]
async fn states_have_colours_on_a_terminal_alone() {
    if is_skipped("states_have_colours_on_a_terminal_alone") {
        return;
    }
    let server = start_server().await;
    let program = env!("CARGO_BIN_EXE_orchctl");
    let config = server.path().join("config");
    let get = format!("{program} --kubeconfig {} get pods -n shop", config.display());
    let show = |line: &str| {
        let terminal = Terminal::start(server.path(), 100, 40, &format!("{line}; echo ended"));
        terminal.wait_for("ended");
        terminal.coloured()
    };
    let shown = show(&get);
    for state in [
        coloured(32, "Running"),
        coloured(33, "Pending"),
        coloured(33, "ContainerCreating"),
        coloured(31, "CrashLoopBackOff"),
        coloured(31, "ImagePullBackOff"),
    ] {
        assert!(shown.contains(&state), "{state:?}: {shown:?}");
    }
    assert!(shown.contains("cart-1") && !shown.contains(&coloured(32, "cart-1")), "{shown:?}");
    for plain in [
        format!("{get} | cat"),
        format!("NO_COLOR=1 {get}"),
        format!("TERM=dumb {get}"),
        format!("{get} -o name"),
    ] {
        let shown = show(&plain);
        assert!(shown.contains("cart"), "{plain}: {shown:?}");
        assert!(!shown.contains('\u{1b}'), "{plain}: {shown:?}");
    }
    let watching = Terminal::start(server.path(), 100, 40, &format!("{get} --watch"));
    watching.wait_for("Running");
    let shown = watching.coloured();
    assert!(shown.contains(&coloured(32, "Running")), "{shown:?}");
    // A limit ends a watch, whatever has come until then.
    show(&format!("{get} --watch --request-timeout=2s"));
}
