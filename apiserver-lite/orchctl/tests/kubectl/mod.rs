//! The kubectl whose words count: versions word some answers differently. What is answered otherwise on purpose is listed in `tests/results/orchctl.md`.

use std::path::PathBuf;

/// The program of this name, beside any `kubectl` of PATH.
pub fn find(name: &str) -> Option<String> {
    let path = std::env::var_os("PATH")?;
    let beside = |directory: PathBuf| {
        let real = std::fs::canonicalize(directory.join("kubectl")).ok()?;
        let found = real.parent()?.join(name);
        found.is_file().then(|| found.display().to_string())
    };
    std::env::split_paths(&path).find_map(beside)
}

/// The page that lists all differences.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/results/orchctl.md");

/// The lines of a script that are compared.
pub fn compared_lines(script: &str) -> impl Iterator<Item = &str> {
    let is_compared =
        |line: &&str| !line.is_empty() && !line.starts_with('#') && !line.starts_with(": ");
    script.lines().filter(is_compared)
}

/// Compares a section of the page with the differences that a test allows.
pub fn check_page(title: &str, script: &str, differences: &[(&str, &str)]) {
    let rows = differences.iter().map(|(line, why)| {
        assert!(compared_lines(script).any(|one| one == *line), "{line} is not in the script");
        format!("| `{}` | {why} |\n", line.replace('|', "\\|"))
    });
    let rows: String = rows.collect();
    let (count, different) = (compared_lines(script).count(), differences.len());
    let section = format!(
        "## {title}\n\n{count} lines; {different} answered otherwise on purpose:\n\n| line | why |\n|---|---|\n{rows}"
    );
    let page = std::fs::read_to_string(PAGE).expect("the page");
    assert!(page.contains(&section), "{PAGE} has to say:\n{section}");
}
