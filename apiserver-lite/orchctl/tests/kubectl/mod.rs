//! The kubectl whose words count: versions word some answers differently.

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
