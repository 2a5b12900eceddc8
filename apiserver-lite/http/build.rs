//! Sets the compiler's version for `/version`.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    // `rustc 1.95.0 (59807616e 2026-04-14)`; a compiler that does not say leaves it empty.
    let version = text.unwrap_or_default().split(' ').nth(1).map(str::to_owned);
    println!("cargo:rustc-env=ORCH_RUSTC_VERSION={}", version.unwrap_or_default());
}
