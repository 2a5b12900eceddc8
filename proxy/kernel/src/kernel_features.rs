//! Probes the kernel's features with transactions that create and delete objects.

use proxy_netfilter::ack::errno;
use proxy_netfilter::nft::command::{Command, IfExists};
use proxy_netfilter::nft::numbers::{HookPoint, TableFlags};
use proxy_netfilter::nft::{Chain, Family, Table};

use crate::session::{CommitError, Session};
use crate::transport::Transport;

/// What this kernel supports of nf_tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFeatures {
    /// Families with nat chains.
    pub families: Vec<Family>,
    /// Flags of tables that belong to a socket and outlive it; `NONE` if the kernel does not support them.
    pub owner_flags: TableFlags,
}

impl KernelFeatures {
    /// Probes `families` with a table of a name that no program uses; nothing of it stays. Fails if access to
    /// netfilter is denied.
    pub fn probe<T: Transport>(
        session: &mut Session<T>,
        table: &str,
        families: &[Family],
    ) -> Result<Self, CommitError> {
        let mut able = Vec::new();
        for family in families {
            let chain = Chain::nat(table, "c", HookPoint::PREROUTING, 0);
            let make = [
                Command::NewTable(Table::named(table), IfExists::Keep),
                Command::NewChain(chain, IfExists::Keep),
            ];
            if accepts(session, *family, table, &make)? {
                able.push(*family);
            }
        }
        let flags = TableFlags::OWNER | TableFlags::PERSIST;
        let owned = Table { flags: Some(flags), ..Table::named(table) };
        let owned = Command::NewTable(owned, IfExists::Keep);
        let owners = match able.first() {
            Some(family) => accepts(session, *family, table, &[owned])?,
            None => false,
        };
        Ok(Self { families: able, owner_flags: if owners { flags } else { TableFlags::NONE } })
    }
}

/// Whether the kernel accepts commands that create objects in a new table.
fn accepts<T: Transport>(
    session: &mut Session<T>,
    family: Family,
    table: &str,
    make: &[Command],
) -> Result<bool, CommitError> {
    let mut batch = session.batch(None);
    batch.extend(family, make);
    batch.push(family, &Command::DelTable(Table::named(table)));
    match session.commit(batch) {
        Ok(()) => Ok(true),
        Err(error) => match error.errno() {
            Some(errno::EOPNOTSUPP | errno::EAFNOSUPPORT | errno::EINVAL | errno::ENOENT) => {
                Ok(false)
            }
            _ => Err(error),
        },
    }
}
