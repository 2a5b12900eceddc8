//! The watches of the nodes' proxies, without the proxies: each over a connection of its own, on a thread of its own, which throws away what it is sent.

use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use http::HeaderValue;
use http::header::ACCEPT;
use http_body_util::BodyExt as _;
use proto_client::{Client, request};
use tokio::sync::oneshot;

use super::control_plane::ControlPlane;

/// Before a watch that failed or ended is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// Open watches. They end with it.
pub struct ProxyWatches {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProxyWatches {
    /// Opens those of `nodes` proxies: Services and EndpointSlices.
    pub fn start(plane: &ControlPlane, nodes: usize) -> Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let clients: Vec<Client> =
            (0..nodes).map(|_| plane.client.separate()).collect::<Result<_, _>>()?;
        let slices = format!("/apis/{}/v1/endpointslices", plane.names.group("discovery"));
        let form = format!("{};stream=watch", plane.names.protobuf_media_type());
        let form = HeaderValue::from_str(&form)?;
        let paths = ["/api/v1/services".to_owned(), slices];
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                for path in &paths {
                    for client in &clients {
                        let path = format!("{path}?watch=true");
                        tokio::spawn(follow(client.clone(), path, form.clone()));
                    }
                }
                let _ = stopped.await;
            });
        });
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for ProxyWatches {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn follow(client: Client, path: String, form: HeaderValue) {
    loop {
        let mut asked = request::get(path.clone());
        asked.headers_mut().insert(ACCEPT, form.clone());
        if let Ok(mut response) = client.open(asked).await {
            while let Some(Ok(_)) = response.body_mut().frame().await {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}
