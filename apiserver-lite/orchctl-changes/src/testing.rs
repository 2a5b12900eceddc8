//! A session with a server that answers by a function, and streams that tests read.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::Response;
use orchctl_client::{ApiResource, GlobalFlags, Output, Session};
use proto_client::testing::{StubRequest, StubServer, json_response};
use serde_json::json;

use crate::requests::Place;

/// A server with the kinds that tests need, and a session of the namespace `default`.
pub(crate) struct TestServer {
    pub(crate) session: Session,
    /// The warnings of the session.
    pub(crate) notes: Recorder,
}

impl TestServer {
    /// Answers what is no question about kinds by `answer`, which gets the number of the request, from 1 on.
    pub(crate) async fn start(
        answer: impl Fn(&StubRequest, usize) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        let count = AtomicUsize::new(0);
        let server = StubServer::start(move |request| {
            let kinds = kinds(&request.path).map(|body| json_response(200, &body));
            let own = || answer(request, count.fetch_add(1, Ordering::Relaxed) + 1);
            Some(kinds.unwrap_or_else(own))
        })
        .await;
        let mut flags = GlobalFlags { request_timeout: "0".into(), ..GlobalFlags::default() };
        flags.server.server = Some(format!("http://{}", server.address));
        let notes = Recorder::default();
        let session = Session::new(flags, Arc::new(|_| None), Box::new(notes.clone()));
        Self { session, notes }
    }

    pub(crate) fn pod(&self, name: &str) -> Place {
        let text = str::to_owned;
        let resource = ApiResource {
            version: text("v1"),
            plural: text("pods"),
            singular: text("pod"),
            kind: text("Pod"),
            namespaced: true,
            ..ApiResource::default()
        };
        Place { resource, namespace: Some(text("default")), name: text(name) }
    }
}

fn kinds(path: &str) -> Option<serde_json::Value> {
    let verbs = ["get", "list", "patch"];
    Some(match path {
        "/api" => json!({"versions": ["v1"]}),
        "/apis" => json!({"groups": [{"name": "apps", "versions": [{"version": "v1"}]}]}),
        "/apis/apps/v1" => json!({"resources": [
            {"name": "deployments", "singularName": "deployment", "kind": "Deployment", "shortNames": ["deploy"], "namespaced": true, "verbs": verbs}]}),
        "/api/v1" => json!({"resources": [
            {"name": "pods", "singularName": "pod", "kind": "Pod", "namespaced": true, "verbs": verbs},
            {"name": "services", "singularName": "service", "kind": "Service", "namespaced": true, "verbs": verbs},
            {"name": "nodes", "singularName": "node", "kind": "Node", "shortNames": ["no"], "namespaced": false, "verbs": verbs}]}),
        _ => return None,
    })
}

/// What was written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    out: Arc<Mutex<Vec<u8>>>,
    err: Arc<Mutex<Vec<u8>>>,
}

fn text(bytes: &Mutex<Vec<u8>>) -> String {
    let bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Recorder {
    pub(crate) fn output() -> (Output, Self) {
        let recorder = Self::default();
        let output = Output {
            out: Box::new(recorder.clone()),
            err: Box::new(Self { out: recorder.err.clone(), err: Arc::default() }),
            input: Box::new(io::empty()),
            colours: false,
        };
        (output, recorder)
    }

    pub(crate) fn out(&self) -> String {
        text(&self.out)
    }

    pub(crate) fn err(&self) -> String {
        text(&self.err)
    }
}

impl Write for Recorder {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A pipe whose reader goes when it would get this text.
pub(crate) struct ClosedAt(pub(crate) &'static str);

impl Write for ClosedAt {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        match String::from_utf8_lossy(piece).contains(self.0) {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(piece.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
