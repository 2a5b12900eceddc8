//! DNS queries of pods, responses of other servers, and their configuration.

use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use proxy_dns::message::{self, RequestError};

fn asked(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    let name = Name::from_ascii(name).unwrap_or_default();
    message.queries = vec![Query::query(name, kind)];
    message
}

/// What is said fits, and is a message.
fn said(answer: Message, limit: usize) {
    let Some(bytes) = message::encode(answer, limit) else { return };
    assert!(bytes.len() <= limit, "{} of {limit} bytes", bytes.len());
    assert!(Message::from_vec(&bytes).is_ok(), "{bytes:?}");
}

/// A question, answered from names.
pub mod dns_request {
    use std::sync::{Arc, OnceLock};

    use proto_api::core::v1::Service;
    use proxy_dns::model::name_service;
    use proxy_dns::{Resolution, Zone};

    use super::*;

    fn zone() -> Option<&'static Zone> {
        static ZONE: OnceLock<Option<Zone>> = OnceLock::new();
        let made = ZONE.get_or_init(|| {
            let mut zone = Zone::new("cluster.local", ("system", "dns")).ok()?;
            for (number, name) in ["db", "web"].into_iter().enumerate() {
                let mut service = Service::default();
                service.metadata.name = name.into();
                service.metadata.namespace = "demo".into();
                service.spec.cluster_ip = format!("10.96.0.{}", number + 2);
                service.spec.cluster_ips = vec![service.spec.cluster_ip.clone()];
                let service = name_service(&service).map(Arc::new);
                zone.service_changed("demo", name, service);
            }
            Some(zone)
        });
        made.as_ref()
    }

    /// Reads and answers it.
    pub fn check(bytes: &[u8]) {
        let request = match message::read(bytes) {
            Ok(request) => request,
            Err(RequestError::Ignore) => return,
            Err(RequestError::Answer(answer)) => return said(*answer, 512),
        };
        let limit = message::datagram_limit(&request.message);
        let zone = zone().expect("a zone");
        let (first, name) = match zone.resolve_query(&request.query, 1) {
            Resolution::Answered(reply) => {
                return said(message::own_answer(&request.message, reply), limit);
            }
            Resolution::Continues { records, target } => (records, target),
            Resolution::Elsewhere => (Vec::new(), request.query.name().clone()),
        };
        let question = message::question(9, &name, &request);
        let bytes = question.to_vec().expect("a question that was read can be asked");
        let again = Message::from_vec(&bytes).expect("what was written is read");
        assert_eq!(again.queries, question.queries);
        said(message::foreign_answer(&request.message, first, &request.message), limit);
    }

    /// Questions of all types about names that are there and such that are not.
    pub fn seeds() -> Vec<Vec<u8>> {
        let kinds =
            [RecordType::A, RecordType::AAAA, RecordType::SRV, RecordType::PTR, RecordType::ANY];
        let names = [
            "db.demo.svc.cluster.local.",
            "_web._tcp.web.demo.svc.cluster.local.",
            "2.0.96.10.in-addr.arpa.",
            "10-0-0-1.demo.pod.cluster.local.",
            "cluster.local.",
            "example.com.",
        ];
        let mut all = Vec::new();
        for name in names {
            for kind in kinds {
                let mut message = asked(name, kind);
                if kind == RecordType::SRV {
                    message.edns = Some(hickory_proto::op::Edns::new());
                }
                all.extend(message.to_vec());
            }
        }
        all
    }
}

/// What another server answers, kept and passed on.
pub mod dns_answer {
    use proxy_dns::cache::{Cache, CacheKey, CacheLimits};

    use super::*;

    /// Reads it as the answer to its own question.
    pub fn check(bytes: &[u8]) {
        let Ok(answer) = Message::from_vec(bytes) else { return };
        let mut request = asked("a.example.com.", RecordType::A);
        request.metadata.id = answer.metadata.id;
        if let [query] = answer.queries.as_slice() {
            request.queries = vec![query.clone()];
        }
        // What is no answer is not looked at any further.
        if !message::answers(&request, &answer) {
            return;
        }
        said(message::foreign_answer(&request, Vec::new(), &answer), 1232);
        let mut cache = Cache::new(CacheLimits { entries: 4, ..CacheLimits::default() });
        let (name, now) = (Name::root(), Instant::now());
        let key =
            CacheKey { name, kind: RecordType::A, dnssec_ok: false, checking_disabled: false };
        cache.put(key.clone(), answer, now);
        let _ = cache.get(&key, now);
        assert!(cache.get(&key, now + Duration::from_secs(31)).is_none(), "kept for too long");
    }

    /// An answer with records, one without, and a refusal.
    pub fn seeds() -> Vec<Vec<u8>> {
        let name = Name::from_ascii("a.example.com.").unwrap_or_default();
        let mut message = asked("a.example.com.", RecordType::A);
        message.metadata.message_type = MessageType::Response;
        let empty = message.to_vec().unwrap_or_default();
        let cname = RData::CNAME(hickory_proto::rr::rdata::CNAME(name.clone()));
        let address = RData::A(hickory_proto::rr::rdata::A::new(10, 0, 0, 1));
        message.answers =
            [cname, address].map(|data| Record::from_rdata(name.clone(), 30, data)).to_vec();
        vec![empty, message.to_vec().unwrap_or_default()]
    }
}

/// A resolv.conf.
pub mod resolv_conf {
    /// Reads it.
    pub fn check(bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let own = "10.96.0.10".parse().into_iter().collect::<Vec<_>>();
        let servers = proxy_dns::resolv_conf::servers(&text, &own);
        assert!(servers.len() <= 8 && servers.iter().all(|server| !own.contains(&server.ip())));
    }

    /// One with everything.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            "search a b\nnameserver 10.96.0.10\nnameserver fd00::1 # x\noptions ndots:5\n",
        ])
    }
}
