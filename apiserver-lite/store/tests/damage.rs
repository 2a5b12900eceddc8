//! No acknowledged write is lost silently, wherever the store is damaged.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "damage/table.rs"]
mod table;

use table::{Effort, OpenOutcome, Values};

#[tokio::test]
async fn nothing_is_lost_in_silence() {
    check(Values::Plain).await;
}

#[tokio::test]
async fn of_transformed_values_nothing_is_lost_in_silence() {
    check(Values::Transformed).await;
}

async fn check(values: Values) {
    let effort = Effort { log_step: 7, checkpoint_step: 401, bits: false, values };
    let table = table::table(effort).await;
    eprintln!("{}", table.text());
    assert_eq!(table.first_loss, None);
    // A store whose damage loses nothing opens.
    assert!(table.count("acknowledged revision", OpenOutcome::Damaged) == 0);
    assert!(table.count("acknowledged revision", OpenOutcome::Whole) > 5);
    assert!(table.count("last segment: flip", OpenOutcome::Damaged) > 5);
    assert!(table.count("closed segment: flip", OpenOutcome::Damaged) > 5);
    assert!(table.count("flip in the last frame", OpenOutcome::SetAside) > 5);
}

#[tokio::test]
async fn a_person_may_accept_the_loss() {
    table::accepted(Values::Plain).await;
    table::accepted(Values::Transformed).await;
}
