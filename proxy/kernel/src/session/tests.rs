#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

use std::collections::VecDeque;

use super::*;
use crate::transport::FakeTransport;
use proxy_netfilter::nft::Table;
use proxy_netfilter::nft::command::{Command, IfExists};

/// Responds to each request with the next of these.
#[derive(Default)]
struct Script(VecDeque<Vec<u8>>, Vec<u8>);

impl Transport for Script {
    fn send(&mut self, _datagram: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        self.1 = self.0.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        Ok(&self.1)
    }

    fn port(&self) -> u32 {
        1
    }
}

fn message(kind: u16, flags: u16, seq: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(16 + payload.len()).unwrap();
    let (kind, flags) = (kind.to_ne_bytes(), flags.to_ne_bytes());
    [&len.to_ne_bytes()[..], &kind, &flags, &seq.to_ne_bytes(), &[0; 4], payload].concat()
}

fn dump(answers: &[Vec<u8>]) -> Result<Vec<Element>, QueryError> {
    let mut session = Session::new(Script(answers.iter().cloned().collect(), Vec::new()));
    session.elements(Family::Ip, "t", "s")
}

#[test]
fn a_dump_that_ends_with_an_error_is_not_complete() {
    let multi = wire::flags::MULTI;
    let done = |flags, seq, errno: i32| message(wire::NLMSG_DONE, flags, seq, &errno.to_ne_bytes());
    assert_eq!(dump(&[done(multi, 1, 0)]).unwrap(), []);
    // Kernels before 4.14.
    assert_eq!(dump(&[message(wire::NLMSG_DONE, multi, 1, &[])]).unwrap(), []);
    let failed = dump(&[done(multi, 1, -12)]);
    assert!(matches!(failed, Err(QueryError::Refused { errno: 12 })), "{failed:?}");
    assert!(matches!(dump(&[done(multi, 1, i32::MIN)]), Err(QueryError::Answer(_))));
    // An interrupted dump is started again, whatever its error.
    let interrupted = done(multi | wire::flags::DUMP_INTR, 1, -2);
    assert_eq!(dump(&[interrupted, done(multi, 2, 0)]).unwrap(), []);
    // The rest of an abandoned response is ignored.
    let stranger = done(multi, 7, -12);
    assert_eq!(dump(&[stranger, done(multi, 1, 0)]).unwrap(), []);
    assert!(matches!(dump(&[]), Err(QueryError::Lost(_))));
}

#[test]
fn sequence_numbers_of_a_batch_rise() {
    let mut session = Session::new(FakeTransport::default());
    session.seq = SEQ_MAX;
    for table in ["a", "b"] {
        let mut batch = session.batch(None);
        batch.push(Family::Ip, &Command::NewTable(Table::named(table), IfExists::Keep));
        session.commit(batch).unwrap();
    }
    assert!(session.seq < 10, "{}", session.seq);
    session.seq = SEQ_MAX;
    assert_eq!((session.next_seq(), session.next_seq()), (SEQ_MAX, 1));
}
