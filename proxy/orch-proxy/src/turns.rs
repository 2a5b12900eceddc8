//! Which of the two tables that take turns packets pass, asked of the kernel.

use proxy_kernel::{QueryError, Session, Transport};
use proxy_netfilter::nft::{Family, TableRules};
use proxy_rules::turn::{self, Standing};

/// The tables of one name as they are, without elements.
#[derive(Debug)]
pub struct Found {
    /// The name.
    pub table: String,
    /// Those that are there.
    pub shapes: Vec<(Family, TableRules)>,
}

impl Found {
    /// What they do.
    pub fn standing(&self) -> Standing {
        let each = self.shapes.iter().map(|(_, shape)| Standing::of(Some(shape)));
        each.fold(Standing::Absent, Standing::most)
    }
}

/// The tables of both names of `name`.
pub fn find<T: Transport>(
    session: &mut Session<T>,
    name: &str,
    families: &[Family],
) -> Result<[Found; 2], QueryError> {
    let mut found = turn::names(name).map(|table| Found { table, shapes: Vec::new() });
    for one in &mut found {
        for family in families {
            let shape = session.read_shape(*family, &one.table)?;
            one.shapes.extend(shape.map(|shape| (*family, shape)));
        }
    }
    Ok(found)
}

/// The name of the tables that packets pass; `name` itself where there are none.
pub fn serving<T: Transport>(
    session: &mut Session<T>,
    name: &str,
    families: &[Family],
) -> Result<String, QueryError> {
    let found = find(session, name, families)?;
    let serving = found.into_iter().find(|one| one.standing() == Standing::Serving);
    Ok(serving.map_or_else(|| name.to_owned(), |one| one.table))
}
