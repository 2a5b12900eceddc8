//! A fake API server of Services and EndpointSlices, in memory, over plain HTTP: only the requests of a proxy. Lists
//! are paged and watches continue from a resourceVersion, as with the real one.

#![allow(dead_code, reason = "each program uses what it needs")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use proto_api::core::v1::{Endpoints, Node, Service};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::names::Names;
use proto_api::object::to_protobuf_envelope;
use proto_api::{Kind, List, Resource};

/// Cheap to clone; threads end with the process.
#[derive(Clone)]
pub struct Api(Arc<Shared>);

struct Shared {
    names: &'static Names,
    state: Mutex<State>,
    changed: Condvar,
    started: Instant,
    /// When the last event was written, in nanoseconds after the start.
    written: AtomicU64,
}

#[derive(Default)]
struct State {
    version: u64,
    services: BTreeMap<String, Service>,
    slices: BTreeMap<String, EndpointSlice>,
    endpoints: BTreeMap<String, Endpoints>,
    /// Those of requests for one; lists have none.
    nodes: BTreeMap<String, Node>,
    /// Every event, by resourceVersion.
    log: Vec<Event>,
}

#[derive(Clone)]
struct Event {
    version: u64,
    plural: &'static str,
    frame: Arc<[u8]>,
}

const SERVICES: &str = "services";
const SLICES: &str = "endpointslices";
/// For programs without EndpointSlices.
const ENDPOINTS: &str = "endpoints";

impl Api {
    /// Without objects.
    pub fn new(names: &'static Names) -> Self {
        let state = Mutex::new(State { version: 1, ..State::default() });
        let (started, written) = (Instant::now(), AtomicU64::new(0));
        Self(Arc::new(Shared { names, state, changed: Condvar::new(), started, written }))
    }

    /// Serves in the network namespace of the calling thread.
    pub fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let api = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let api = api.clone();
                thread::spawn(move || api.converse(stream));
            }
        });
        address
    }

    /// Time since the last event was written to a socket.
    pub fn since_written(&self) -> Duration {
        let written = Duration::from_nanos(self.0.written.load(Ordering::Acquire));
        self.0.started.elapsed().saturating_sub(written)
    }

    /// Creates or replaces a Service.
    pub fn put_service(&self, service: Service) {
        self.put(SERVICES, service, |state| &mut state.services);
    }

    /// Creates or replaces an EndpointSlice.
    pub fn put_slice(&self, slice: EndpointSlice) {
        self.put(SLICES, slice, |state| &mut state.slices);
    }

    /// Creates or replaces Endpoints, for older programs.
    pub fn put_endpoints(&self, endpoints: Endpoints) {
        self.put(ENDPOINTS, endpoints, |state| &mut state.endpoints);
    }

    /// Creates or replaces a Node, which requests for it get.
    pub fn put_node(&self, node: Node) {
        let mut state = self.0.state.lock().unwrap();
        state.nodes.insert(node.metadata.name.clone(), node);
    }

    fn put<T: Resource>(
        &self,
        plural: &'static str,
        mut object: T,
        of: impl Fn(&mut State) -> &mut BTreeMap<String, T>,
    ) {
        let mut state = self.0.state.lock().unwrap();
        state.version += 1;
        let version = state.version;
        object.metadata_mut().resource_version = version.to_string();
        let key = format!("{}/{}", object.metadata().namespace, object.metadata().name);
        let frame = frame("MODIFIED", &to_protobuf_envelope(&object, self.0.names)).into();
        of(&mut state).insert(key, object);
        state.log.push(Event { version, plural, frame });
        drop(state);
        self.0.changed.notify_all();
    }

    fn converse(&self, stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut writer = stream;
        while let Some(target) = request(&mut reader) {
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let is_watch = query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1");
            let plural = path.rsplit('/').next().unwrap_or_default();
            let done = match (plural, is_watch) {
                (SERVICES, true) => self.watch(SERVICES, query, &mut writer),
                (SLICES, true) => self.watch(SLICES, query, &mut writer),
                (ENDPOINTS, true) => self.watch(ENDPOINTS, query, &mut writer),
                (_, true) => self.watch("", query, &mut writer),
                (SERVICES, false) => self.list(query, &mut writer, |state| &state.services),
                (SLICES, false) => self.list(query, &mut writer, |state| &state.slices),
                (ENDPOINTS, false) => self.list(query, &mut writer, |state| &state.endpoints),
                _ if path.contains("/nodes/") => self.node(plural, &mut writer),
                _ => {
                    self.list(query, &mut writer, |_: &State| const { &BTreeMap::<_, Node>::new() })
                }
            };
            if done.is_err() || is_watch {
                return;
            }
        }
    }

    fn list<T: Resource>(
        &self,
        query: &str,
        writer: &mut TcpStream,
        of: impl Fn(&State) -> &BTreeMap<String, T>,
    ) -> std::io::Result<()> {
        let limit = parameter(query, "limit").filter(|limit| *limit > 0).unwrap_or(u64::MAX);
        let from = parameter(query, "continue").unwrap_or(0);
        let mut list = List::<T>::default();
        {
            let state = self.0.state.lock().unwrap();
            let all = of(&state);
            list.metadata.resource_version = state.version.to_string();
            let (from, limit) = (from as usize, usize::try_from(limit).unwrap_or(usize::MAX));
            list.items = all.values().skip(from).take(limit).cloned().collect();
            if from.saturating_add(limit) < all.len() {
                list.metadata.continue_ = (from + limit).to_string();
            }
        }
        self.answer(&list, writer)
    }

    fn node(&self, name: &str, writer: &mut TcpStream) -> std::io::Result<()> {
        let found = self.0.state.lock().unwrap().nodes.get(name).cloned();
        match found {
            Some(node) => self.answer(&node, writer),
            None => not_found(writer),
        }
    }

    fn answer<T: Kind>(&self, object: &T, writer: &mut TcpStream) -> std::io::Result<()> {
        let body = to_protobuf_envelope(object, self.0.names);
        let media_type = self.0.names.protobuf_media_type();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        writer.write_all(&[head.as_bytes(), &body].concat())
    }

    fn watch(&self, plural: &str, query: &str, writer: &mut TcpStream) -> std::io::Result<()> {
        let media_type = self.0.names.protobuf_media_type();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        writer.write_all(head.as_bytes())?;
        let mut seen = parameter(query, "resourceVersion").unwrap_or(0);
        loop {
            let mut chunk = Vec::new();
            {
                let mut state = self.0.state.lock().unwrap();
                while state.version <= seen {
                    state = self.0.changed.wait(state).unwrap();
                }
                let first = state.log.partition_point(|event| event.version <= seen);
                let new = state.log.iter().skip(first).filter(|event| event.plural == plural);
                new.for_each(|event| chunk.extend_from_slice(&event.frame));
                seen = state.version;
            }
            if !chunk.is_empty() {
                let head = format!("{:x}\r\n", chunk.len());
                let now = u64::try_from(self.0.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.0.written.store(now, Ordering::Release);
                writer.write_all(&[head.as_bytes(), &chunk, b"\r\n"].concat())?;
            }
        }
    }
}

/// There is no Node of that name.
fn not_found(writer: &mut TcpStream) -> std::io::Result<()> {
    let body = serde_json::json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
    });
    let (body, json) = (body.to_string(), "content-type: application/json");
    let head =
        format!("HTTP/1.1 404 Not Found\r\n{json}\r\ncontent-length: {}\r\n\r\n", body.len());
    writer.write_all(&[head.as_bytes(), body.as_bytes()].concat())
}

/// The target of the next request; its headers are discarded.
fn request(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
    let target = line.split(' ').nth(1)?.to_owned();
    let mut body_len = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok().filter(|len| *len > 0)?;
        if header.trim().is_empty() {
            // Bodies, of events, are discarded.
            reader.read_exact(&mut vec![0; body_len]).ok()?;
            return Some(target);
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            body_len = value.trim().parse().ok()?;
        }
    }
}

fn parameter(query: &str, name: &str) -> Option<u64> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).and_then(|(_, value)| value.parse().ok())
}

/// One watch event.
fn frame(event_type: &str, object: &[u8]) -> Vec<u8> {
    let field =
        |number: u8, bytes: &[u8]| [&[number << 3 | 2], &varint(bytes.len())[..], bytes].concat();
    let event = [field(1, event_type.as_bytes()), field(2, &field(1, object))].concat();
    let len = u32::try_from(event.len()).unwrap();
    [&len.to_be_bytes()[..], &event].concat()
}

fn varint(mut n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while n >= 0x80 {
        bytes.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
    bytes
}

/// A kubeconfig for a server.
pub fn kubeconfig(address: SocketAddr) -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    })
    .to_string()
}
