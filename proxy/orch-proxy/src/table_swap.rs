//! Which of the two tables that take turns packets pass, asked of the kernel.

use proxy_kernel::{QueryError, Session, Transport};
use proxy_netfilter::nft::{Family, TableRules};
use proxy_rules::table_swap::{self as swap, TableState};

/// The tables of one name as they are, without elements.
#[derive(Debug)]
pub struct NamedTables {
    /// The name.
    pub table: String,
    /// Those that are there.
    pub shapes: Vec<(Family, TableRules)>,
}

impl NamedTables {
    /// What they do.
    pub fn state(&self) -> TableState {
        let each = self.shapes.iter().map(|(_, shape)| TableState::from_rules(Some(shape)));
        each.fold(TableState::Absent, TableState::max)
    }
}

/// The tables of both names of `name`.
pub fn find_tables<T: Transport>(
    session: &mut Session<T>,
    name: &str,
    families: &[Family],
) -> Result<[NamedTables; 2], QueryError> {
    let mut found = swap::table_names(name).map(|table| NamedTables { table, shapes: Vec::new() });
    for one in &mut found {
        for family in families {
            let shape = session.read_shape(*family, &one.table)?;
            one.shapes.extend(shape.map(|shape| (*family, shape)));
        }
    }
    Ok(found)
}

/// The name of the tables that packets pass; `name` itself where there are none.
pub fn serving_table<T: Transport>(
    session: &mut Session<T>,
    name: &str,
    families: &[Family],
) -> Result<String, QueryError> {
    let found = find_tables(session, name, families)?;
    let serving = found.into_iter().find(|one| one.state() == TableState::Serving);
    Ok(serving.map_or_else(|| name.to_owned(), |one| one.table))
}
