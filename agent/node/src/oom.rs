//! Kernel log records of tasks killed because the whole machine was out of memory. Pure.

/// A task killed because of a global out-of-memory condition, not because of a cgroup limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomVictim {
    /// Name of the process.
    pub process: String,
    /// Process id.
    pub pid: u32,
}

/// Parses the victim from a record of the kernel log. A record starts with its priority, in which all but the lowest three bits
/// are the facility; records written by user space are ignored.
pub fn parse_victim(record: &str) -> Option<OomVictim> {
    let (head, text) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    let of_kernel = priority >> 3 == 0;
    let line = text.lines().next()?.strip_prefix("oom-kill:").filter(|_| of_kernel)?;
    let mut fields = line.split(',');
    // Process names may contain commas; the fields before and after them are found by key.
    if !fields.any(|field| field == "global_oom") {
        return None;
    }
    let (_, rest) = line.split_once(",task=")?;
    let (process, rest) = rest.rsplit_once(",pid=")?;
    let pid = rest.split(',').next()?.parse().ok()?;
    Some(OomVictim { process: process.to_owned(), pid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_machines_own_want_of_memory_counts() {
        let global = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/x,task=a,b,pid=12,uid=0\n";
        let bound = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/x,task_memcg=/x,task=tail,pid=7,uid=0\n";
        let victim_of = |head: &str, text: &str| parse_victim(&format!("{head};{text}"));
        let found = Some(OomVictim { process: "a,b".into(), pid: 12 });
        assert_eq!(victim_of("6,79,24684,-", global), found);
        assert_eq!(victim_of("6,79,24684,-", bound), None);
        assert_eq!(victim_of("14,79,24684,-", global), None, "a user wrote it");
        for broken in [
            "",
            ";",
            "6",
            "x;oom-kill:",
            "6,1,1,-;oom-kill:global_oom,task=a,pid=x",
            "6;oom-kill:global_oom",
        ] {
            assert_eq!(parse_victim(broken), None, "{broken}");
        }
    }
}
