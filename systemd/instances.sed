# Makes plog@.service, for several brokers on one host, of plog.service:
#
#   sed -f systemd/instances.sed systemd/plog.service >/etc/systemd/system/plog@.service
#
# Each is `systemctl start plog@NAME`, with listeners and log.dirs of its own in /etc/plog/NAME.properties.
s|plog broker$|plog broker %i|
s|/etc/plog/server\.properties|/etc/plog/%i.properties|
s|/var/lib/plog|/var/lib/plog/%i|
s|^StateDirectory=plog|StateDirectory=plog/%i|
