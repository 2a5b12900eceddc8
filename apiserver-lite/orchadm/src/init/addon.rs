//! The phase `addon`: the Service of the name servers, and the proxy of this machine.

use anyhow::Result;
use apiserver_bootstrap::access;

use super::InitContext;
use super::control_plane::authority;
use super::node::member;
use crate::member::start_proxy;

/// Makes the addons.
///
/// # Errors
/// The API server refuses, or the proxy cannot be started.
pub async fn make(context: &mut InitContext, part: &str) -> Result<()> {
    let names = context.host.names;
    if context.is_selected("addon", "dns", part) {
        let address = context.settings.cluster.dns_address()?;
        access::ensure_dns_service(&context.client()?, names, address).await?;
        let message = format!("the Service of the name servers is {address}");
        context.host.output.log("addon", &message);
    }
    if context.is_selected("addon", "kube-proxy", part) {
        let authority = authority(&context.settings);
        let member = member(&context.host, &context.settings, &context.runtime, &authority);
        start_proxy(&context.host, &member, &mut context.services, &mut context.record).await?;
    }
    Ok(())
}
