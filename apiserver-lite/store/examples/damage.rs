//! Prints the result of opening a store after each possible damage of its files: `cargo run -p apiserver-store --example damage [transformed]`.

#![allow(clippy::unwrap_used, reason = "shares its code with a test")]

#[path = "../tests/damage/table.rs"]
#[allow(dead_code, clippy::panic, reason = "shared with a test")]
mod table;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // Panics in redb are counted, not printed.
    std::panic::set_hook(Box::new(|_| {}));
    let values = match std::env::args().nth(1).as_deref() {
        Some("transformed") => table::Values::Transformed,
        _ => table::Values::Plain,
    };
    let effort = table::Effort { log_step: 1, checkpoint_step: 41, bits: true, values };
    let table = table::table(effort).await;
    println!("{}", table.text());
    let lost = table.count("", table::OpenOutcome::LostInSilence);
    println!("{lost} acknowledged writes lost in silence");
    if let Some(loss) = table.first_loss {
        println!("the first: {loss}");
        std::process::exit(1);
    }
}
