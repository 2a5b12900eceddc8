use super::*;
use crate::model::Choice;
use proxy_netfilter::nft::Data;

#[test]
fn classes_are_decoded_from_their_words() {
    let classes = [
        Class::Balance(EndpointPool::Service, Choice::Random, 1),
        Class::Balance(EndpointPool::ServiceHere, Choice::Consistent, 7),
        Class::Balance(EndpointPool::NodePort, Choice::sticky(10_800), HERE_FIRST_SLOT),
        Class::Balance(EndpointPool::NodePortHere, Choice::sticky(u32::MAX), 3),
        Class::Balance(EndpointPool::NodePortHere, Choice::sticky(u32::MAX), HERE_FIRST_SLOT),
        Class::Reject,
        Class::Drop,
    ];
    for class in classes {
        assert_eq!(Class::from_word(class.word()), Some(class));
        assert_eq!(Class::from_data(class.data().bytes()), Some(class));
    }
    assert_eq!((Class::from_word(0x7fff << 15), Class::from_word(0xffff_0003)), (None, None));
    let of =
        |count| Class::for_endpoints(EndpointPool::Service, Choice::Random, count, Class::Drop);
    assert_eq!(of(0), Class::Drop);
    let most = Class::Balance(EndpointPool::Service, Choice::Random, HERE_FIRST_SLOT);
    assert_eq!(of(100_000), most);
}

#[test]
fn keys_have_the_lengths_that_the_sets_declare() {
    for family in FAMILIES {
        let address: IpAddr =
            if family == Family::Ip { "10.0.0.1" } else { "fd00::1" }.parse().unwrap();
        let service = service_key(&address, Protocol::Tcp, 80);
        let node_port = node_port_key(Protocol::Sctp, 30000);
        let keys = [
            (Map::Services, service.clone()),
            (Map::NodePorts, node_port.clone()),
            (Map::Endpoints, slot_key(&service, 3)),
            (Map::NodePortEndpoints, slot_key(&node_port, 3)),
            (Map::Classes, Class::Drop.key()),
            (
                Map::Hairpin,
                Value::concat(&[address_value(&address).bytes(), address_value(&address).bytes()]),
            ),
            (Map::ClusterIps, address_value(&address)),
            (Map::LoadBalancerIps, address_value(&address)),
            (Map::Affinity, affinity_key(None, (Protocol::Tcp, 80), &address)),
            (Map::Affinity, affinity_key(Some(&address), (Protocol::Tcp, 80), &address)),
            (Map::Live, live_key((&address, 8080), None, (Protocol::Tcp, 80))),
            (Map::LiveHere, live_key((&address, 8080), Some(&address), (Protocol::Tcp, 80))),
            (Map::Gated, service.clone()),
            (Map::SourceRanges, source_range_key(&service, &Cidr::new(address, 8).unwrap())),
        ];
        for (map, key) in keys {
            assert_eq!(map.declare(family, "t", 1).key_len as usize, key.bytes().len(), "{map:?}");
        }
        let data = backend_value(&address, 8080).bytes().len();
        assert_eq!(Map::Endpoints.declare(family, "t", 1).data_len, u32::try_from(data).ok());
        let data = affinity_value(&address, 8080).bytes().len();
        assert_eq!(Map::Affinity.declare(family, "t", 1).data_len, u32::try_from(data).ok());
    }
}

#[test]
fn rules_use_only_sets_and_chains_that_are_there() {
    let layout = Layout {
        table: "t".into(),
        flags: TableFlags::NONE,
        families: FAMILIES.into(),
        settings: Settings::default(),
    };
    for family in FAMILIES {
        let mut table = layout.skeleton(family, |_| 16, |_| true);
        for choice in [Choice::Random, Choice::Consistent, Choice::sticky(10)] {
            for draw in [EndpointPool::Service, EndpointPool::NodePortHere] {
                layout.add_class(family, &mut table, Class::Balance(draw, choice, 2));
            }
        }
        layout.add_prefix(family, &mut table, 24);
        for rule in table.chains.values().flat_map(|chain| &chain.rules) {
            for expr in &rule.exprs {
                match expr {
                    proxy_netfilter::nft::Expr::Lookup(lookup) => {
                        assert!(table.sets.contains_key(&lookup.set), "{}", lookup.set);
                    }
                    proxy_netfilter::nft::Expr::Dynset(dynset) => {
                        assert!(table.sets.contains_key(&dynset.set), "{}", dynset.set);
                    }
                    proxy_netfilter::nft::Expr::Immediate(immediate) => {
                        if let Data::Verdict(verdict) = &immediate.data
                            && let Some(chain) = verdict.chain()
                        {
                            assert!(table.chains.contains_key(chain), "{chain}");
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}
