//! What this kernel can do, found out by asking: transactions that make something and delete it again.

use proxy_netfilter::ack::errno;
use proxy_netfilter::nft::command::{Command, Existing};
use proxy_netfilter::nft::numbers::{HookPoint, TableFlags};
use proxy_netfilter::nft::{Chain, Family, Table};

use crate::session::{CommitError, Session};
use crate::transport::Transport;

/// What this kernel can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFeatures {
    /// Families of which it has nat chains.
    pub families: Vec<Family>,
    /// Flags by which a table belongs to our socket and outlives it; none where it has no such tables.
    pub owner_flags: TableFlags,
}

impl KernelFeatures {
    /// Asks about `families`. `table` is the name of a table that nobody has; nothing of it stays. Fails when
    /// the kernel may not be asked.
    pub fn probe<T: Transport>(
        session: &mut Session<T>,
        table: &str,
        families: &[Family],
    ) -> Result<Self, CommitError> {
        let mut able = Vec::new();
        for family in families {
            let chain = Chain::nat(table, "c", HookPoint::PREROUTING, 0);
            let make = [
                Command::NewTable(Table::named(table), Existing::Keep),
                Command::NewChain(chain, Existing::Keep),
            ];
            if accepts(session, *family, table, &make)? {
                able.push(*family);
            }
        }
        let flags = TableFlags::OWNER | TableFlags::PERSIST;
        let owned = Table { flags: Some(flags), ..Table::named(table) };
        let owned = Command::NewTable(owned, Existing::Keep);
        let owners = match able.first() {
            Some(family) => accepts(session, *family, table, &[owned])?,
            None => false,
        };
        Ok(Self { families: able, owner_flags: if owners { flags } else { TableFlags::NONE } })
    }
}

/// Whether the kernel takes commands that make something in a new table.
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
