//! The addresses that clients are to keep: who is sent them, and when.

use super::*;
use crate::control::{FEATURE_RENEWAL, Renewal, Text};

fn addresses(texts: &[&str]) -> Option<Renewal> {
    let texts = texts.iter().map(|text| Text::new(*text).unwrap()).collect();
    Some(Renewal { addresses: List::new(texts).unwrap(), weights: None })
}

/// The connections that are sent addresses, and which.
fn sent(effects: &[Effect]) -> Vec<(ConnectionId, Option<Renewal>)> {
    let renewals = effects.iter().filter_map(|effect| match effect {
        Effect::Send { connection, message: Message::Renewal(renewal) } => {
            Some((*connection, Some(renewal.clone())))
        }
        _ => None,
    });
    renewals.collect()
}

#[test]
fn clients_that_agreed_are_sent_what_is_new_and_at_each_connection() {
    let with = Config { features: FEATURE_RENEWAL, ..config(1) };
    let mut gateway = gateway(with);
    let renewing = |gateway: &mut Gateway, connection, device, features| {
        let offer = Offer { features, ..offer(2) };
        gateway.login(NOW, ConnectionId(connection), who("ann", device), &offer, secret()).unwrap();
        effects(gateway)
    };
    let nothing_yet = renewing(&mut gateway, 1, 1, FEATURE_RENEWAL);
    assert!(sent(&nothing_yet).is_empty());
    let old = renewing(&mut gateway, 2, 2, 0);
    assert!(sent(&old).is_empty());
    let new = addresses(&["vpn2.example.org:4433"]);
    gateway.set_renewal(new.clone());
    assert_eq!(
        sent(&effects(&mut gateway)),
        [(ConnectionId(1), new.clone())],
        "not the one without the feature"
    );
    gateway.set_renewal(new.clone());
    assert!(sent(&effects(&mut gateway)).is_empty(), "nothing is new");
    // The list follows the answer to another login of the same device.
    let again = renewing(&mut gateway, 3, 1, FEATURE_RENEWAL);
    let place = |wanted: fn(&Message) -> bool| {
        again.iter().position(|effect| matches!(effect, Effect::Send { message, .. } if wanted(message)))
    };
    assert_eq!(sent(&again), [(ConnectionId(3), new)]);
    assert!(
        place(|message| matches!(message, Message::Established(_)))
            < place(|message| matches!(message, Message::Renewal(_)))
    );
    gateway.set_renewal(None);
    assert!(sent(&effects(&mut gateway)).is_empty(), "clients keep what they have");
}

#[test]
fn weights_are_sent_with_the_next_epoch_and_not_to_all_at_once() {
    let with = Config { features: FEATURE_RENEWAL, renewal: addresses(&["192.0.2.1:4433"]), ..config(1) };
    let mut gateway = gateway(with);
    let offer = Offer { features: FEATURE_RENEWAL, ..offer(2) };
    gateway.login(NOW, ConnectionId(1), who("ann", 1), &offer, secret()).unwrap();
    assert_eq!(sent(&effects(&mut gateway))[0].1.as_ref().unwrap().weights, None);
    let weights = List::new(vec![40]).ok();
    gateway.set_weights(weights.clone());
    assert!(sent(&effects(&mut gateway)).is_empty());
    gateway.login(NOW, ConnectionId(2), who("ann", 2), &offer, secret()).unwrap();
    assert_eq!(sent(&effects(&mut gateway))[0].1.as_ref().unwrap().weights, weights);
    // A configuration that was read again, as it is and with others.
    gateway.set_renewal(addresses(&["192.0.2.1:4433"]));
    assert!(sent(&effects(&mut gateway)).is_empty(), "nothing is new");
    gateway.set_renewal(addresses(&["192.0.2.2:4433"]));
    let news = sent(&effects(&mut gateway));
    assert!(news.len() == 2 && news[0].1.as_ref().unwrap().weights.is_none(), "{news:?}");
}
