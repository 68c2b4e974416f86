//! Behaviour of [`crate::Invitations`].

use super::{Stand, external, named};
use crate::{Accepted, PasswordHash, StoreError, TotpSecret};

fn accepted(invitation: u8) -> Accepted {
    Accepted {
        invitation: [invitation; 32],
        password: Some(PasswordHash::new("$argon2id$another".to_owned())),
        totp: TotpSecret::new(vec![5; 20]),
        step: 70,
    }
}

pub(crate) fn an_invitation_is_good_once_until_its_time(stand: &dyn Stand) {
    let store = stand.open();
    let ann = store.add_user(&named("ann"), 1000).unwrap();
    store.invite("ann", &[1; 32], 2000).unwrap();
    store.invite("ann", &[2; 32], 2000).unwrap();
    drop(store);
    let store = stand.open();
    let invited = |number: u8, now_s| store.invited(&[number; 32], now_s).unwrap().map(|user| user.name);
    assert_eq!((invited(1, 1001), invited(2, 1999)), (None, Some("ann".to_owned())), "the last one alone");
    assert_eq!(invited(2, 2000), None);
    assert!(!store.accept_invitation(&accepted(2), 2000).unwrap());
    assert!(!store.accept_invitation(&accepted(1), 1500).unwrap());
    assert!(store.user("ann").unwrap().unwrap().totp.is_none());
    let without_password = Accepted { password: None, ..accepted(2) };
    assert!(!store.accept_invitation(&without_password, 1500).unwrap());
    assert!(store.accept_invitation(&accepted(2), 1500).unwrap());
    let user = store.user("ann").unwrap().unwrap();
    assert_eq!((user.password, user.totp), (accepted(2).password, Some(accepted(2).totp)));
    assert!(!store.use_totp_step(ann, 70).unwrap() && store.use_totp_step(ann, 71).unwrap());
    assert!(!store.accept_invitation(&accepted(2), 1500).unwrap() && invited(2, 1500).is_none(), "once");
}

pub(crate) fn an_invitation_goes_with_the_rights_of_its_user(stand: &dyn Stand) {
    let store = stand.open();
    store.add_user(&named("ann"), 1000).unwrap();
    let invited = |number: u8| store.invited(&[number; 32], 1001).unwrap().is_some();
    store.invite("ann", &[1; 32], 2000).unwrap();
    store.set_enabled("ann", false, 1001).unwrap();
    store.set_enabled("ann", true, 1001).unwrap();
    assert!(!invited(1), "an administrator has taken rights away since");
    store.invite("ann", &[2; 32], 2000).unwrap();
    assert!(invited(2));
    store.remove_user("ann", 1001).unwrap();
    assert!(!invited(2));
    assert!(matches!(store.invite("eve", &[3; 32], 2000), Err(StoreError::NoSuchUser { .. })));
}

pub(crate) fn a_user_of_another_source_chooses_codes_by_an_invitation_and_no_password(stand: &dyn Stand) {
    let store = stand.open();
    let cat = store.refresh_external(&external("uid=cat", "cat@uni.example", &[]), 1000).unwrap();
    store.invite(&cat.name, &[3; 32], 2000).unwrap();
    assert!(!store.accept_invitation(&accepted(3), 1500).unwrap(), "her password is not kept here");
    assert!(store.accept_invitation(&Accepted { password: None, ..accepted(3) }, 1500).unwrap());
    drop(store);
    let store = stand.open();
    let user = store.user(&cat.name).unwrap().unwrap();
    assert_eq!((user.password, user.totp), (None, Some(accepted(3).totp)));
    assert!(!store.use_totp_step(cat.id, 70).unwrap(), "it was shown");
    assert!(!store.accept_invitation(&Accepted { password: None, ..accepted(3) }, 1500).unwrap(), "once");
}
