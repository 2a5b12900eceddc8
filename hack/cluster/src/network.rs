//! The cluster's network on the host: one bridge, and a veth pair into each node.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result, bail};
use futures_util::TryStreamExt;
use netlink_packet_route::address::AddressAttribute;
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder};

use crate::spec::{Node, Spec};

/// Length of the cluster subnet's prefix.
const PREFIX_LEN: u8 = 24;

/// Opens a route netlink connection; its driver runs until the handle is dropped.
fn connect() -> Result<Handle> {
    let (connection, handle, _) =
        rtnetlink::new_connection().context("cannot open route netlink")?;
    tokio::spawn(connection);
    Ok(handle)
}

/// A value for [`Spec::subnet`] whose addresses no link of the host has.
pub async fn free_subnet() -> Result<u8> {
    let handle = connect()?;
    let mut taken = HashSet::new();
    let mut addresses = handle.address().get().execute();
    while let Some(message) = addresses.try_next().await.context("cannot list addresses")? {
        for attribute in message.attributes {
            if let AddressAttribute::Address(IpAddr::V4(address)) = attribute
                && let [172, 30, third, _] = address.octets()
            {
                taken.insert(third);
            }
        }
    }
    match (0..=u8::MAX).find(|third| !taken.contains(third)) {
        Some(third) => Ok(third),
        None => bail!("all of 172.30.0.0/16 is taken on this host"),
    }
}

/// Makes the bridge with its address, if it is not there.
pub async fn ensure_bridge(spec: &Spec) -> Result<()> {
    let handle = connect()?;
    let name = spec.bridge();
    let index = match index_of(&handle, &name).await? {
        Some(index) => index,
        None => {
            let message = LinkBridge::new(&name).build();
            handle
                .link()
                .add(message)
                .execute()
                .await
                .context("cannot create the cluster's bridge")?;
            index_of(&handle, &name)
                .await?
                .context("the new bridge disappeared before it was configured")?
        }
    };
    add_address(&handle, index, spec.host_address()).await?;
    set_up(&handle, index).await
}

/// Removes the bridge; the nodes' veth pairs go with their namespaces.
pub async fn remove_bridge(name: &str) -> Result<()> {
    let handle = connect()?;
    if let Some(index) = index_of(&handle, name).await? {
        handle
            .link()
            .del(index)
            .execute()
            .await
            .with_context(|| format!("cannot remove {name}"))?;
    }
    Ok(())
}

/// Plugs the node whose namespaces process `pid` holds into the bridge, unless it is.
pub async fn plug(spec: &Spec, node: &Node, pid: i32) -> Result<()> {
    let handle = connect()?;
    let outer = format!("o{}-{}", spec.tag(), node.index + 1);
    let bridge = index_of(&handle, &spec.bridge()).await?.context("the bridge is missing")?;
    if let Some(stale) = index_of(&handle, &outer).await? {
        // The other end belongs to an older namespace of the node, or to none.
        handle
            .link()
            .del(stale)
            .execute()
            .await
            .with_context(|| format!("cannot remove {outer}"))?;
    }
    let inner = format!("{outer}-in");
    let pair = LinkVeth::new(&outer, &inner).build();
    handle.link().add(pair).execute().await.with_context(|| format!("cannot create {outer}"))?;
    let outer_index = index_of(&handle, &outer)
        .await?
        .context("the new link disappeared before it was configured")?;
    let inner_index = index_of(&handle, &inner)
        .await?
        .context("the new link disappeared before it was configured")?;
    let pid = u32::try_from(pid).context("a negative pid")?;
    let rename = LinkUnspec::new_with_index(inner_index).name("eth0").setns_by_pid(pid).build();
    handle.link().set(rename).execute().await.with_context(|| format!("cannot move {inner}"))?;
    let attach = LinkUnspec::new_with_index(outer_index).controller(bridge).up().build();
    handle.link().set(attach).execute().await.with_context(|| format!("cannot attach {outer}"))
}

/// Inside a node's namespace: loopback, address and default route.
pub async fn configure_node(address: Ipv4Addr, gateway: Ipv4Addr) -> Result<()> {
    let handle = connect()?;
    let loopback = index_of(&handle, "lo").await?.context("no loopback")?;
    set_up(&handle, loopback).await?;
    let eth0 = index_of(&handle, "eth0").await?.context("no eth0")?;
    add_address(&handle, eth0, address).await?;
    set_up(&handle, eth0).await?;
    let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build();
    match handle.route().add(route).execute().await {
        Err(e) if !exists(&e) => Err(e).context("cannot add the default route"),
        _ => Ok(()),
    }
}

async fn index_of(handle: &Handle, name: &str) -> Result<Option<u32>> {
    let mut links = handle.link().get().match_name(name.to_owned()).execute();
    match links.try_next().await {
        Ok(link) => Ok(link.map(|link| link.header.index)),
        Err(rtnetlink::Error::NetlinkError(e)) if e.raw_code() == -nix::libc::ENODEV => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot get link {name}")),
    }
}

async fn add_address(handle: &Handle, index: u32, address: Ipv4Addr) -> Result<()> {
    match handle.address().add(index, IpAddr::V4(address), PREFIX_LEN).execute().await {
        Err(e) if !exists(&e) => Err(e).with_context(|| format!("cannot add address {address}")),
        _ => Ok(()),
    }
}

async fn set_up(handle: &Handle, index: u32) -> Result<()> {
    let message = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(message).execute().await.context("cannot set a link up")
}

fn exists(error: &rtnetlink::Error) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(e) if e.raw_code() == -nix::libc::EEXIST)
}
