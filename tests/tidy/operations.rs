//! The page of operations quotes what the programs say: each quoted message stands in a source.

use std::fs;

use crate::{check, is_test, root, sources};

const PAGE: &str = "apiserver-lite/OPERATIONS.md";
/// Shorter pieces between the dots of a quotation would be found anywhere.
const PIECE_LEN_MIN: usize = 4;

/// Texts in backquotes in the first column of the tables of symptoms. One without a blank is a name, not a message.
fn quotations(page: &str) -> Vec<String> {
    let symptoms = page.split("\n## By symptom\n").nth(1).unwrap_or_default();
    let symptoms = symptoms.split("\n## ").next().unwrap_or_default();
    let first_column = |line: &str| line.strip_prefix("| ")?.split(" | ").next().map(str::to_owned);
    let cells = symptoms.lines().filter_map(first_column);
    let quoted = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>());
    quoted.filter(|text| text.contains(' ')).collect()
}

/// The pieces of a quotation, which leaves out with dots what differs from case to case.
fn pieces(quotation: &str) -> impl Iterator<Item = &str> {
    let all = quotation.split("...").flat_map(|piece| piece.split(": "));
    all.map(|piece| piece.trim_matches([' ', '.'])).filter(|piece| piece.len() >= PIECE_LEN_MIN)
}

#[test]
fn quoted_messages_are_those_of_the_programs() {
    let page = fs::read_to_string(root().join(PAGE)).expect(PAGE);
    // A long text goes on in the next line behind a backslash.
    let join = |(_, source): (String, String)| {
        let lines = source.lines().map(|line| line.trim().trim_end_matches('\\'));
        lines.collect::<Vec<_>>().join("")
    };
    let programs = sources().into_iter().filter(|(path, _)| !is_test(path));
    let sources: Vec<String> = programs.map(join).collect();
    let quotations = quotations(&page);
    assert!(quotations.len() > 15, "{quotations:?}");
    let mut offenders = Vec::new();
    for quotation in &quotations {
        for piece in pieces(quotation) {
            if !sources.iter().any(|source| source.contains(piece)) {
                offenders.push(format!("{piece:?} of {quotation:?}"));
            }
        }
    }
    check("messages in OPERATIONS.md are those of the programs", offenders);
}

#[test]
fn a_quotation_is_found_in_pieces() {
    let page = "| `no this` | x |\n\n## By symptom\n\n| `cannot a ... at: b cd` or `word` | `not this one` |\n\n## Leaving\n| `nor this` |";
    let found = quotations(page);
    assert_eq!(found, ["cannot a ... at: b cd"]);
    assert_eq!(pieces(&found[0]).collect::<Vec<_>>(), ["cannot a", "b cd"]);
}
