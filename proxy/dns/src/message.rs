//! DNS messages.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, Record};
use hickory_proto::serialize::binary::BinEncodable;

use crate::zone::Reply;

/// UDP payload size that is advertised and sent: fits any path without fragmentation (DNS flag day 2020).
pub const DATAGRAM_MAX: u16 = 1232;
/// UDP payload size of clients without EDNS (RFC 1035, section 2.3.4).
const DATAGRAM_DEFAULT: u16 = 512;
/// The only EDNS version (RFC 6891).
const EDNS_VERSION: u8 = 0;

/// Why a request is not resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// Not a request: no response is sent, or two servers could exchange messages forever.
    Ignore,
    /// It is answered with this message.
    Answer(Box<Message>),
}

/// A DNS query with one question, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The message as received.
    pub message: Message,
    /// Its question.
    pub query: Query,
}

/// Decodes a request.
pub fn read(bytes: &[u8]) -> Result<Request, RequestError> {
    let Ok(message) = Message::from_vec(bytes) else {
        return Err(broken(bytes));
    };
    if message.metadata.message_type != MessageType::Query {
        return Err(RequestError::Ignore);
    }
    let say = |code| Err(RequestError::Answer(Box::new(answer(&message, code))));
    if message.metadata.op_code != OpCode::Query {
        return say(ResponseCode::NotImp);
    }
    if message.edns.as_ref().is_some_and(|edns| edns.version() > EDNS_VERSION) {
        return say(ResponseCode::BADVERS);
    }
    match message.queries.as_slice() {
        [query] => Ok(Request { query: query.clone(), message }),
        _ => say(ResponseCode::FormErr),
    }
}

/// The response to bytes that cannot be decoded: the first twelve suffice.
fn broken(bytes: &[u8]) -> RequestError {
    match bytes {
        [high, low, flags, ..] if bytes.len() >= 12 && flags & 0x80 == 0 => {
            let id = u16::from_be_bytes([*high, *low]);
            RequestError::Answer(Box::new(Message::error_msg(
                id,
                OpCode::Query,
                ResponseCode::FormErr,
            )))
        }
        _ => RequestError::Ignore,
    }
}

/// A response without records.
pub fn answer(request: &Message, code: ResponseCode) -> Message {
    let mut answer = Message::response(request.metadata.id, request.metadata.op_code);
    answer.metadata.recursion_desired = request.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.metadata.checking_disabled = request.metadata.checking_disabled;
    answer.metadata.response_code = code;
    answer.queries = request.queries.clone();
    answer.edns = request.edns.as_ref().map(|asked| {
        let mut edns = Edns::new();
        edns.set_max_payload(DATAGRAM_MAX).set_version(EDNS_VERSION);
        edns.set_dnssec_ok(asked.flags().dnssec_ok);
        edns
    });
    answer
}

/// A response from the zone.
pub fn own_answer(request: &Message, reply: Reply) -> Message {
    let mut answer = answer(request, reply.code);
    answer.metadata.authoritative = reply.code != ResponseCode::Refused;
    answer.answers = reply.answers;
    answer.authorities = reply.authorities;
    answer.additionals = reply.additionals;
    answer
}

/// An upstream response, after `first`: CNAME records of the zone that lead to the queried name.
pub fn foreign_answer(request: &Message, first: Vec<Record>, theirs: &Message) -> Message {
    let mut answer = answer(request, theirs.metadata.response_code);
    answer.metadata.authentic_data = theirs.metadata.authentic_data && first.is_empty();
    answer.answers = first;
    answer.answers.extend(theirs.answers.iter().cloned());
    answer.authorities = theirs.authorities.clone();
    answer.additionals = theirs.additionals.clone();
    answer
}

/// A query to an upstream server.
pub fn question(id: u16, name: &Name, asked: &Request) -> Message {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.metadata.checking_disabled = asked.message.metadata.checking_disabled;
    let mut query = asked.query.clone();
    query.set_name(name.clone());
    message.queries = vec![query];
    let mut edns = Edns::new();
    edns.set_max_payload(DATAGRAM_MAX).set_dnssec_ok(dnssec_ok(&asked.message));
    message.edns = Some(edns);
    message
}

/// Whether `answer` is the response to `question`: any host may send datagrams to our port. The opcode counts too:
/// records of an UPDATE may have no data, which a response to a pod may not.
pub fn answers(question: &Message, answer: &Message) -> bool {
    let same = |(a, b): (&Query, &Query)| {
        a.name == b.name && a.query_type == b.query_type && a.query_class == b.query_class
    };
    answer.metadata.message_type == MessageType::Response
        && answer.metadata.op_code == question.metadata.op_code
        && answer.metadata.id == question.metadata.id
        && answer.queries.len() == question.queries.len()
        && answer.queries.iter().zip(&question.queries).all(same)
}

/// Whether the client wants DNSSEC records.
pub fn dnssec_ok(request: &Message) -> bool {
    request.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok)
}

/// UDP payload size that the client accepts.
pub fn datagram_limit(request: &Message) -> usize {
    let asked = request.edns.as_ref().map_or(DATAGRAM_DEFAULT, Edns::max_payload);
    asked.clamp(DATAGRAM_DEFAULT, DATAGRAM_MAX).into()
}

/// Encodes a response of at most `limit` bytes. Additional records are dropped first, then as many answers as
/// necessary, with TC set so that the client retries by TCP. `None` if not even the question fits.
pub fn encode(mut answer: Message, limit: usize) -> Option<Vec<u8>> {
    let bytes = answer.to_bytes().ok()?;
    // Above 64 KiB the encoder drops records and sets TC in the third byte.
    let is_cut = |bytes: &[u8]| bytes.get(2).is_some_and(|flags| flags & 0x02 != 0);
    if bytes.len() <= limit && !is_cut(&bytes) {
        return Some(bytes);
    }
    answer.additionals.clear();
    let mut bytes = answer.to_bytes().ok()?;
    while bytes.len() > limit {
        answer.metadata.truncation = true;
        answer.authorities.clear();
        if answer.answers.is_empty() {
            let bytes = answer.to_bytes().ok()?;
            return (bytes.len() <= limit).then_some(bytes);
        }
        // As many as would fit if all had the same length, and fewer each time.
        let fit = answer.answers.len() * limit / bytes.len();
        answer.answers.truncate(fit.min(answer.answers.len() - 1));
        bytes = answer.to_bytes().ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::RecordType;
    use std::net::Ipv4Addr;

    fn request(edns: Option<u16>) -> Message {
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.queries = vec![Query::query(
            Name::from_ascii("db.demo.svc.cluster.local.").unwrap(),
            RecordType::A,
        )];
        message.edns = edns.map(|payload| {
            let mut edns = Edns::new();
            edns.set_max_payload(payload);
            edns
        });
        message
    }

    fn reply(count: u32) -> Reply {
        let name = Name::from_ascii("db.demo.svc.cluster.local.").unwrap();
        let record = |n: u32| Record::from_rdata(name.clone(), 5, Ipv4Addr::from(n).into());
        let answers: Vec<Record> = (0..count).map(record).collect();
        let additionals = answers.clone();
        Reply { code: ResponseCode::NoError, answers, authorities: Vec::new(), additionals }
    }

    #[test]
    fn answers_fit_and_say_what_is_missing() {
        for (count, limit, whole) in [
            (1, 512, true),
            (20, 512, true),
            (200, 512, false),
            (200, 1232, false),
            (1000, 65_535, true),
        ] {
            let bytes = encode(own_answer(&request(Some(4096)), reply(count)), limit).unwrap();
            assert!(bytes.len() <= limit);
            let read = Message::from_vec(&bytes).unwrap();
            assert_eq!(read.metadata.truncation, !whole, "{count} in {limit}");
            assert_eq!(read.answers.len() == count as usize, whole);
            assert!(whole || read.answers.len() > 15, "{}", read.answers.len());
            assert!(read.edns.is_some() && read.metadata.id == 7);
        }
        assert_eq!(encode(own_answer(&request(None), reply(1)), 20), None);
    }

    #[test]
    fn limits_follow_the_asker_within_ours() {
        for (edns, limit) in [(None, 512), (Some(100), 512), (Some(800), 800), (Some(4096), 1232)] {
            assert_eq!(datagram_limit(&request(edns)), limit);
        }
    }

    #[test]
    fn malformed_dns_queries_are_answered_with_errors_or_ignored() {
        let code = |bytes: &[u8]| match read(bytes) {
            Ok(_) => panic!("a question"),
            Err(RequestError::Ignore) => None,
            Err(RequestError::Answer(message)) => {
                Some((message.metadata.id, message.metadata.response_code))
            }
        };
        let good = request(None).to_vec().unwrap();
        assert!(read(&good).is_ok());
        let changed = |change: &dyn Fn(&mut Message)| {
            let mut message = request(Some(1232));
            change(&mut message);
            code(&message.to_vec().unwrap())
        };
        assert_eq!(code(b""), None);
        assert_eq!(code(&good[..20]), Some((7, ResponseCode::FormErr)));
        assert_eq!(changed(&|m| m.metadata.message_type = MessageType::Response), None);
        assert_eq!(
            changed(&|m| m.metadata.op_code = OpCode::Status),
            Some((7, ResponseCode::NotImp))
        );
        assert_eq!(changed(&|m| m.queries.clear()), Some((7, ResponseCode::FormErr)));
        let version = changed(&|m| {
            m.edns.as_mut().unwrap().set_version(1);
        });
        assert_eq!(version.map(|(id, _)| id), Some(7));
    }

    #[test]
    fn only_the_answer_to_the_question_counts() {
        let asked = request(None);
        let good = answer(&asked, ResponseCode::NoError);
        assert!(answers(&asked, &good));
        let mut other = good.clone();
        other.metadata.id = 8;
        assert!(!answers(&asked, &other) && !answers(&asked, &asked));
        // Found by fuzzing: a record without data, which only an UPDATE may have, would have been forwarded.
        let mut bytes = good.to_vec().unwrap();
        bytes[2] |= 5 << 3;
        bytes[7] = 1;
        bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 0]);
        let update = Message::from_vec(&bytes).unwrap();
        assert_eq!((update.answers.len(), update.metadata.op_code), (1, OpCode::Update));
        assert!(!answers(&asked, &update));
        let mut other = good;
        other.queries[0].query_type = RecordType::AAAA;
        assert!(!answers(&asked, &other));
    }
}
