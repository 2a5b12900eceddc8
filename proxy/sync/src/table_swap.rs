//! Reads from the kernel which of the two tables serves.

use proxy_kernel::{QueryError, Session, Transport};
use proxy_netfilter::nft::{Family, TableRules};
use proxy_rules::table_swap::{self as swap, TableState};

/// Tables of one name, without elements.
#[derive(Debug)]
pub struct NamedTables {
    /// The name.
    pub table: String,
    /// The families that exist.
    pub shapes: Vec<(Family, TableRules)>,
}

impl NamedTables {
    /// The state of the tables together.
    pub fn state(&self) -> TableState {
        let each = self.shapes.iter().map(|(_, shape)| TableState::from_rules(Some(shape)));
        each.fold(TableState::Absent, TableState::max)
    }
}

/// The tables of both names.
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

/// The name of the serving tables; `name` itself if there are none.
pub fn serving_table<T: Transport>(
    session: &mut Session<T>,
    name: &str,
    families: &[Family],
) -> Result<String, QueryError> {
    let found = find_tables(session, name, families)?;
    let serving = found.into_iter().find(|one| one.state() == TableState::Serving);
    Ok(serving.map_or_else(|| name.to_owned(), |one| one.table))
}
