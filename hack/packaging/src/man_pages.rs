//! Manual pages: one of each program, and one of each of its commands.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::Command;
use clap_mangen::Man;
use proto_daemon::reference::Reference;

use crate::command::command;
use crate::programs::Program;

/// Writes the pages of a program below a root.
pub fn write(program: &Program, reference: &Reference, date: &str, root: &Path) -> Result<()> {
    let mut whole = command(reference);
    whole.build();
    let dir = root.join(format!("usr/share/man/man{}", program.section));
    let heading = Heading { section: program.section, date, version: &reference.version };
    write_page(&heading, &whole, program.name, &dir)
}

/// What all pages of a program say in their first and last line.
struct Heading<'a> {
    section: &'a str,
    date: &'a str,
    version: &'a str,
}

fn write_page(heading: &Heading<'_>, of: &Command, name: &str, dir: &Path) -> Result<()> {
    for part in of.get_subcommands() {
        write_page(heading, part, &format!("{name}-{}", part.get_name()), dir)?;
    }
    let man = Man::new(of.clone())
        .title(name)
        .section(heading.section)
        .date(heading.date)
        .source(format!("orch {}", heading.version))
        .manual("orch");
    let mut bytes = Vec::new();
    man.render(&mut bytes).context("cannot render a manual page")?;
    let text = String::from_utf8(bytes).context("a manual page is no text")?;
    crate::write(&dir.join(format!("{name}.{}", heading.section)), &text)
}
