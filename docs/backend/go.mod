module github.com/paddock-go/paddock/docs/backend

go 1.26.0

require github.com/paddock-go/paddock v0.0.0

require github.com/google/uuid v1.6.0 // indirect

replace github.com/paddock-go/paddock => ../..
