//! What containers read in volumes made from objects: at every step all of one version, never an older one than before, in the end
//! the newest; and tokens that are good for as long as anybody can be asked for another (invariants 11 and 18).

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use agent_clock as clock;
use agent_volume::token::TokenLifetime;
use proto_api::core::v1::Volume;

use super::world::World;

/// What a volume holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holds {
    /// The two files of an object, which say the same.
    Versions(String),
    Token,
}

/// A volume that a container of a pod has begun to use.
#[derive(Clone, Debug)]
struct Reader {
    path: PathBuf,
    holds: Holds,
    /// The newest version that was read.
    last: usize,
}

/// Who reads what, by uid and volume.
#[derive(Default)]
pub struct Readers {
    all: BTreeMap<(String, String), Reader>,
    /// What has been written to each object, oldest first.
    versions: BTreeMap<String, Vec<String>>,
}

impl Readers {
    /// An object says something else.
    pub fn written(&mut self, object: &str, version: &str) {
        self.versions.entry(object.to_owned()).or_default().push(version.to_owned());
    }
}

impl World {
    /// A container that has this volume starts.
    pub fn reads(&mut self, uid: &str, volume: &Volume, path: PathBuf) {
        let source = &volume.volume_source;
        let map = source.config_map.as_ref().map(|map| map.local_object_reference.name.clone());
        let secret = source.secret.as_ref().map(|secret| secret.secret_name.clone());
        let holds = match (map.or(secret), &source.projected) {
            (Some(object), _) => Holds::Versions(object),
            (None, Some(_)) => Holds::Token,
            (None, None) => return,
        };
        let reader = Reader { path, holds, last: 0 };
        self.readers.all.entry((uid.to_owned(), volume.name.clone())).or_insert(reader);
    }

    /// Reads everything that containers of live pods may read.
    pub fn judge_readers(&mut self, is_live: impl Fn(&str) -> bool) {
        let all: Vec<_> = self.readers.all.keys().cloned().collect();
        for key in all.into_iter().filter(|(uid, _)| is_live(uid)) {
            let Some(reader) = self.readers.all.get(&key) else { continue };
            let read = self.readers.read(reader);
            match (read, self.readers.all.get_mut(&key)) {
                (Ok(last), Some(reader)) => reader.last = last,
                (Err(what), _) => self.broken(format!("a container of {} reads {what}", key.0)),
                (Ok(_), None) => {}
            }
        }
    }

    /// The first volume of a live pod that has not come to hold what it should, though nothing hinders it.
    pub fn behind(&self, is_live: impl Fn(&str) -> bool) -> Option<String> {
        let old = |reader: &Reader| match &reader.holds {
            Holds::Versions(object) => {
                let versions = self.readers.versions.get(object).map_or(0, Vec::len);
                reader.last + 1 < versions
            }
            Holds::Token => false,
        };
        let mut all = self.readers.all.iter();
        let found = all.find(|((uid, _), reader)| is_live(uid) && old(reader));
        found.map(|((uid, volume), _)| format!("{volume} of {uid} is not brought up to date"))
    }
}

impl Readers {
    /// The number of the version that a container reads now; what is wrong with what it reads.
    fn read(&self, reader: &Reader) -> Result<usize, String> {
        let text = |name: &str| {
            let read = fs::read_to_string(reader.path.join(name));
            read.map_err(|error| format!("nothing in {name}: {error}"))
        };
        match &reader.holds {
            Holds::Token => judge_token(&text("token")?).map(|()| 0),
            Holds::Versions(object) => {
                let (version, same) = (text("version")?, text("same")?);
                if version != same {
                    return Err(format!("of {object} a mix of {version:?} and {same:?}"));
                }
                let versions = self.versions.get(object).map_or(&[][..], Vec::as_slice);
                let at = versions.iter().rposition(|known| *known == version);
                let at = at.ok_or_else(|| format!("{version:?}, which nobody wrote"))?;
                match at < reader.last {
                    true => Err(format!("an older version of {object} again")),
                    false => Ok(at),
                }
            }
        }
    }
}

/// A token has to be good by the clock of the server, whatever the node's says. Nobody is away here for as long as a fifth of the
/// shortest life, so that there is no excuse.
fn judge_token(token: &str) -> Result<(), String> {
    let life = TokenLifetime::from_token(token).ok_or_else(|| format!("no token: {token:?}"))?;
    let now = clock::server_unix();
    match now < life.expires_at {
        true => Ok(()),
        false => Err(format!(
            "a token that has been bad for {:?}",
            Duration::from_secs((now - life.expires_at).unsigned_abs())
        )),
    }
}
