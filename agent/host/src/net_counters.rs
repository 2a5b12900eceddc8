//! Counters of network interfaces in the network namespace of a process.

/// Received and sent totals of one network interface since it was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    pub name: String,
    /// Received: bytes, packets, errors, dropped.
    pub received: [u64; 4],
    /// Sent: bytes, packets, errors, dropped.
    pub sent: [u64; 4],
}

/// Interfaces in the namespace of a process (`None`: this process), without loopback; empty if it has exited.
#[must_use]
pub fn read_process(pid: Option<u32>) -> Vec<InterfaceCounters> {
    let process = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    parse(&std::fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap_or_default())
}

/// Parses the table of proc_net_dev(5): two header lines, then `name: 8 numbers received, 8 sent`.
fn parse(text: &str) -> Vec<InterfaceCounters> {
    let of_line = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> =
            numbers.split_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
        let four = |from: usize| numbers.get(from..from + 4)?.try_into().ok();
        Some(InterfaceCounters { name: name.trim().to_owned(), received: four(0)?, sent: four(8)? })
    };
    text.lines().filter_map(of_line).filter(|interface| interface.name != "lo").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
            lo:   1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  \
            eth0: 100 2 3 4 0 0 0 0 50 6 7 8 0 0 0 0\n";
        let expected = InterfaceCounters {
            name: "eth0".into(),
            received: [100, 2, 3, 4],
            sent: [50, 6, 7, 8],
        };
        assert_eq!(parse(text), [expected]);
        assert!(read_process(Some(0)).is_empty());
    }
}
