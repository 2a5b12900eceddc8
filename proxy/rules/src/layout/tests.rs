use super::*;

#[test]
fn classes_come_back_from_their_words() {
    let classes = [
        Class::Balance(Draw::Service, 1),
        Class::Balance(Draw::ServiceHere, 7),
        Class::Balance(Draw::NodePort, HERE_FIRST_SLOT),
        Class::Balance(Draw::NodePortHere, 3),
        Class::Reject,
        Class::Drop,
    ];
    for class in classes {
        assert_eq!(Class::from_word(class.word()), Some(class));
        assert_eq!(Class::from_data(class.data().bytes()), Some(class));
    }
    assert_eq!((Class::from_word(0), Class::from_word(9 << 16 | 1)), (None, None));
    assert_eq!(Class::of(Draw::Service, 0, Class::Drop), Class::Drop);
    let most = Class::Balance(Draw::Service, HERE_FIRST_SLOT);
    assert_eq!(Class::of(Draw::Service, 100_000, Class::Drop), most);
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
        ];
        for (map, key) in keys {
            assert_eq!(map.declare(family, "t", 1).key_len as usize, key.bytes().len(), "{map:?}");
        }
        let data = backend_value(&address, 8080).bytes().len();
        assert_eq!(Map::Endpoints.declare(family, "t", 1).data_len, u32::try_from(data).ok());
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
        let mut table = layout.skeleton(family, |_| 16);
        layout.add_class(family, &mut table, Class::Balance(Draw::NodePortHere, 2));
        for rule in table.chains.values().flat_map(|chain| &chain.rules) {
            for expr in &rule.exprs {
                match expr {
                    proxy_netfilter::nft::Expr::Lookup(lookup) => {
                        assert!(table.sets.contains_key(&lookup.set), "{}", lookup.set);
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
