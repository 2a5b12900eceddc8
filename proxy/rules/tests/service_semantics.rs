//! The tables do to a packet what the Services mean, for random Services.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "support/world.rs"]
mod world;

use proptest::prelude::*;
use proxy_rules::model::family_of;
use proxy_rules::trace::possible_outcomes;
use world::{NODE, Question, World, cases, expected, ip, questions, worlds};

fn worlds_with_questions() -> impl Strategy<Value = (World, Vec<Question>)> {
    worlds().prop_flat_map(|world| {
        let questions = proptest::collection::vec(questions(&world), 1..25);
        (Just(world), questions)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(400)))]

    #[test]
    fn the_tracer_says_what_services_mean((world, questions) in worlds_with_questions()) {
        let mut plane = world.plane("t");
        plane.load();
        let tables = plane.tables();
        let local = [NODE[0], NODE[1], "127.0.0.1", "::1"].map(ip);
        for question in questions.into_iter().filter(|question| world.can_send(question.from)) {
            let table = &tables.iter().find(|(f, _)| *f == family_of(question.to)).unwrap().1;
            let traced = possible_outcomes(table, &question.packet(40_000), &|a| local.contains(&a), 64);
            let expected = expected(&world, &question);
            prop_assert!(expected.admits(&traced), "{:?}: {:?}, not {:?}", question, traced, expected);
        }
    }
}
