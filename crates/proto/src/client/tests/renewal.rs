//! A gateway that has other addresses from now on.

use super::*;
use crate::control::{FEATURE_RENEWAL, Renewal, Text};

#[test]
fn addresses_are_taken_only_where_that_was_agreed_on() {
    let renewal =
        Renewal { addresses: List::new(vec![Text::new("192.0.2.9:4433").unwrap()]).unwrap(), weights: None };
    for (offered, granted, is_taken) in
        [(FEATURE_RENEWAL, FEATURE_RENEWAL, true), (FEATURE_RENEWAL, 0, false), (0, FEATURE_RENEWAL, false)]
    {
        let mut client = client();
        client.connections.config.features = offered;
        let (connection, _) = connect(&mut client).unwrap();
        grant(&mut client, START, connection, &Established { features: granted, ..answer(1) });
        actions(&mut client);
        client.handle_message(START, connection, Message::Renewal(renewal.clone()));
        let done = actions(&mut client);
        let taken = done.iter().any(|action| matches!(action, Action::Renew(taken) if *taken == renewal));
        assert_eq!(taken, is_taken, "{done:?}");
        assert!(
            client.session().is_some() && done.len() == usize::from(is_taken),
            "it is no fault: {done:?}"
        );
    }
}
