//! Flags that say which API server a program uses.

use std::path::{Path, PathBuf};

use clap::Args;
use proto_api::names::Names;

use super::{ClientConfig, ClientConfigError, file, server};

/// Flatten this into a program's flags: `#[command(flatten)] client: ClientFlags`.
#[derive(Args, Clone, Debug, Default)]
pub struct ClientFlags {
    /// The kubeconfig file.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// URL of the API server, in the place of the kubeconfig's.
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
}

impl ClientFlags {
    /// The configuration of the kubeconfig, of the file `default` without one, or else of the pod that the process runs in; none of them is needed with a
    /// URL, which has no credentials then.
    ///
    /// # Errors
    /// The file or the URL is invalid, or nothing is given and the process is in no pod.
    pub fn load(
        &self,
        default: Option<&Path>,
        names: &Names,
    ) -> Result<ClientConfig, ClientConfigError> {
        let master = self.master.as_deref().filter(|url| !url.is_empty());
        let master = master.map(|url| server(Path::new("--master"), url, url)).transpose()?;
        let mut config = match (self.kubeconfig.as_deref().or(default), &master) {
            (Some(path), _) => file::load(path, None)?,
            (None, Some(server)) => ClientConfig::direct(server.clone()),
            (None, None) => ClientConfig::in_cluster(names, |name| std::env::var(name).ok())?,
        };
        master.into_iter().for_each(|server| config.server = server);
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn the_url_takes_the_place_of_the_one_of_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("kubeconfig");
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
                    clusters: [{name: c, cluster: {server: 'https://file:6443'}}]\nusers: [{name: u, user: {token: t}}]\n";
        std::fs::write(&path, text).expect("written");
        let names = Names::new(Profile::Kubernetes);
        let load = |kubeconfig: Option<&Path>, master: &str, default: Option<&Path>| {
            let (kubeconfig, master) = (kubeconfig.map(Path::to_owned), Some(master.to_owned()));
            let config = ClientFlags { kubeconfig, master }.load(default, names);
            config.map_err(|error| error.to_string())
        };
        let server = |config: Result<ClientConfig, String>| config.map(|of| of.server.to_string());
        assert_eq!(server(load(Some(&path), "", None)).as_deref(), Ok("https://file:6443/"));
        assert_eq!(server(load(None, "", Some(&path))).as_deref(), Ok("https://file:6443/"));
        let both = load(Some(&path), "https://flag:1", None).expect("a configuration");
        assert_eq!(both.server, "https://flag:1");
        assert_ne!(both.credential, crate::config::Credential::None, "the file's");
        assert_eq!(server(load(None, "http://flag", None)).as_deref(), Ok("http://flag/"));
        let wrong = load(Some(&path), "ftp://x", None).unwrap_err();
        assert_eq!(wrong, "--master: ftp://x: must begin with https:// or http://");
    }
}
