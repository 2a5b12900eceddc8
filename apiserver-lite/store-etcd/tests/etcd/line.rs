//! A connection between a store and etcd that a test cuts and restores.

use std::sync::Arc;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Forwards connections while it is whole.
pub struct Line {
    port: u16,
    whole: Arc<watch::Sender<bool>>,
}

impl Line {
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let whole = Arc::new(watch::Sender::new(true));
        let forwarded = whole.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut whole = forwarded.subscribe();
                tokio::spawn(async move {
                    if !*whole.borrow() {
                        return;
                    }
                    let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = whole.wait_for(|whole| !whole) => {}
                    }
                });
            }
        });
        Self { port: own, whole }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn set_whole(&self, whole: bool) {
        self.whole.send_replace(whole);
    }
}
