//! `plugin list`: programs of `PATH` that are commands, and what is wrong with some.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tokio::process::Command;

async fn list(path: &OsStr, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchctl"));
    command.args(["plugin", "list"]).args(arguments).env("PATH", path);
    let output = command.output().await.expect("run");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn write(directory: &Path, name: &str, mode: u32) {
    std::fs::write(directory.join(name), "#!/bin/sh\n").expect("a file");
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(directory.join(name), mode).expect("a mode");
}

#[tokio::test]
async fn plugins_are_listed_with_what_keeps_them_from_being_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let [first, second, missing] = ["a", "b", "c"].map(|name| directory.path().join(name));
    for place in [&first, &second] {
        std::fs::create_dir(place).expect("a directory");
    }
    let path = std::env::join_paths([&first, &second, &first]).expect("a path");
    let (code, out, err) = list(&path, &[]).await;
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert_eq!(err, "error: unable to find any orchctl plugins in your PATH\n");

    write(&first, "kubectl-foo", 0o755);
    write(&first, "unrelated", 0o755);
    std::fs::create_dir(first.join("kubectl-dir")).expect("a directory");
    write(&second, "orchctl-bar-x", 0o755);
    let shown = |directory: &Path, name: &str| directory.join(name).display().to_string();
    let head = "The following compatible plugins are available:\n\n";
    let (foo, bar) = (shown(&first, "kubectl-foo"), shown(&second, "orchctl-bar-x"));
    assert_eq!(list(&path, &[]).await, (Some(0), format!("{head}{foo}\n{bar}\n"), String::new()));
    let names = format!("{head}kubectl-foo\norchctl-bar-x\n");
    assert_eq!(list(&path, &["--name-only"]).await, (Some(0), names, String::new()));

    // A name of ours counts before one of kubectl's, wherever they are.
    write(&second, "orchctl-foo", 0o755);
    let (code, _, err) = list(&path, &[]).await;
    let ours = shown(&second, "orchctl-foo");
    let shadowed =
        format!("  - warning: {foo} is overshadowed by a similarly named plugin: {ours}\n");
    assert_eq!((code, err), (Some(1), format!("{shadowed}error: one plugin warning was found\n")));

    write(&second, "kubectl-create-widget", 0o755);
    write(&second, "orchctl-text", 0o644);
    let path = std::env::join_paths([&first, &missing, &second]).expect("a path");
    let (code, _, err) = list(&path, &[]).await;
    let said: Vec<&str> = err.lines().collect();
    let [shadow, unread, built_in, text, last] = said.as_slice() else { panic!("{err}") };
    assert_eq!((code, format!("{shadow}\n")), (Some(1), shadowed));
    assert!(unread.starts_with(&format!("Unable to read directory {missing:?}")), "{unread}");
    assert!(built_in.ends_with("is never run: \"orchctl create\" is a command of this program"));
    assert!(text.ends_with("orchctl-text identified as a plugin, but it is not executable"));
    assert_eq!(*last, "error: 3 plugin warnings were found");
}
