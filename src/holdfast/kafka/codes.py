"""Numbers of errors that the Kafka library itself raises, as its documentation lists them (``rd_kafka_resp_err_t``)."""

AUTO_OFFSET_RESET = -140
PARTITION_EOF = -191
TIMED_OUT = -185
TRANSPORT = -195
ALL_BROKERS_DOWN = -187
AUTHENTICATION = -169
SSL = -181
UNKNOWN_TOPIC = -188
UNKNOWN_PARTITION = -190
NOENT = -156
NODE_UPDATE = -182
WAIT_COORD = -180
PURGE_QUEUE = -152
PURGE_INFLIGHT = -151
STATE = -172
